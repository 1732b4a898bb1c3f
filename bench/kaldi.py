"""Speed of reading archives of Kaldi with cntkio and kaldi_native_io, in one run.

    python bench/kaldi.py [--mb 64] [--repeat 3] [--folder FOLDER]

Each reader gets all matrices of an archive of utterances of 40 values a frame. Figures are CPU time, the best of
--repeat turns in this process; MB are 10^6 bytes of values in float32. The values are compared bit for bit. Needs
kaldi_native_io.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kaldi_native_io as native
import numpy as np
from cntkio import read_kaldi

DIM = 40


def write(folder: Path, num_bytes: int) -> dict[str, Path]:
    generator = np.random.default_rng(1)
    method = native.CompressionMethod
    kinds = {"CM": method.kSpeechFeature, "CM2": method.kTwoByteAuto, "CM3": method.kOneByteAuto}
    paths = {kind: folder / f"{kind}.ark" for kind in ("FM", *kinds)}
    writers: dict[str, Any] = {kind: native.CompressedMatrixWriter(f"ark:{paths[kind]}") for kind in kinds}
    with native.FloatMatrixWriter(f"ark:{paths['FM']}") as plain:
        size = 0
        while size < num_bytes:
            frames = generator.normal(size=(int(generator.integers(100, 900)), DIM)).astype(np.float32)
            key = f"utterance-{size}"
            plain.write(key, frames)
            for kind, writer in writers.items():
                writer.write(key, frames, kinds[kind])
            size += frames.nbytes
    for writer in writers.values():
        writer.close()
    return paths


def theirs(path: Path) -> np.ndarray:
    return np.concatenate([np.array(frames) for _, frames in native.SequentialFloatMatrixReader(f"ark:{path}")])


def ours(path: Path) -> np.ndarray:
    return np.asarray(read_kaldi(path)["features"].values)


def cpu_of(run: Callable[[], Any], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        before = time.process_time()
        run()
        times.append(time.process_time() - before)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=64, help="size of the values")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent.parent / ".cache" / "bench" / "kaldi")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(f"{'':6}{'read_kaldi':>14}{'kaldi_native_io':>18}{'times less CPU':>16}")
    for kind, path in write(arguments.folder, arguments.mb * 10**6).items():
        values = ours(path)
        if not np.array_equal(values, theirs(path)):
            raise RuntimeError(f"{path}: the readers disagree")
        mine, other = (cpu_of(partial(read, path), arguments.repeat) for read in (ours, theirs))
        rates = [values.nbytes / 1e6 / seconds for seconds in (mine, other)]
        print(f"{kind:6}{rates[0]:>9.0f} MB/s{rates[1]:>13.0f} MB/s{other / mine:>16.1f}")


if __name__ == "__main__":
    main()

"""Files that kaldi_native_io writes, with seeded numbers, and the values that it reads back.

`python tests/support/kaldi_files.py` writes the files in tests/data/kaldi.
"""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "data" / "kaldi"
CLASSES = ("ali", "text_ali")


def write(folder: Path, seed: int) -> dict[str, Any]:
    """Write files of each kind into a folder, and return the values of each utterance as kaldi_native_io reads them."""
    import kaldi_native_io as native

    generator = np.random.default_rng(seed)
    method = native.CompressionMethod
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        lengths = (3, 1, 9, int(generator.integers(193, 240)))
        matrices = {f"utt{number}": generator.normal(size=(rows, 4)) * 3 for number, rows in enumerate(lengths)}
        found: dict[str, Any] = {}

        def keep(name: str, values: Any) -> None:
            found.update((f"{name}/{key}", np.array(value)) for key, value in values)

        compressions = {"cm": method.kSpeechFeature, "cm2": method.kTwoByteAuto, "cm3": method.kOneByteAuto}
        for name, how in compressions.items():
            with native.CompressedMatrixWriter(f"ark,scp:{name}.ark,{name}.scp") as writer:
                for key, matrix in matrices.items():
                    writer.write(key, matrix.astype(np.float32), how)
            keep(name, native.SequentialFloatMatrixReader(f"ark:{name}.ark"))
        matrices.popitem()
        for name, form, kind in (("fm", "", "Float"), ("dm", "", "Double"), ("text", ",t", "Float")):
            with getattr(native, f"{kind}MatrixWriter")(f"ark,scp{form}:{name}.ark,{name}.scp") as writer:
                for key, matrix in matrices.items():
                    writer.write(key, matrix.astype(kind.lower().replace("float", "f4").replace("double", "f8")))
            keep(name, getattr(native, f"Sequential{kind}MatrixReader")(f"ark:{name}.ark"))
        for name, form, kind in (("fv", "", "Float"), ("dv", "", "Double"), ("text_v", ",t", "Float")):
            with getattr(native, f"{kind}VectorWriter")(f"ark{form}:{name}.ark") as writer:
                for key, matrix in matrices.items():
                    writer.write(key, matrix[0].astype("f4" if kind == "Float" else "f8"))
            keep(name, getattr(native, f"Sequential{kind}VectorReader")(f"ark:{name}.ark"))
        for name, form in zip(CLASSES, ("", ",t"), strict=True):
            with native.Int32VectorWriter(f"ark{form}:{name}.ark") as writer:
                for key, matrix in matrices.items():
                    writer.write(key, generator.integers(0, 4, len(matrix)).tolist())
            keep(name, native.SequentialInt32VectorReader(f"ark:{name}.ark"))
        lines = (line.split() for line in Path("fm.scp").read_text().splitlines())
        Path("ranges.scp").write_text("".join(f"{key} {place}[0:0,1:3]\n" for key, place in lines))
        keep("ranges", native.SequentialFloatMatrixReader("scp:ranges.scp"))
        with native.TokenWriter("ark,t:utt2spk") as writer:
            for key, speaker in zip(matrices, ("anna", "bob", "anna"), strict=True):
                writer.write(key, speaker)
    return found


if __name__ == "__main__":
    np.savez_compressed(DATA / "expected.npz", **write(DATA, 7))
    os.sync()

"""Padding and cost of minibatches by budget and from pools, next to minibatches of a number of samples.

    python bench/batches.py [--sequences 100000] [--planned 10000000]
    python bench/batches.py TEXT...     only the padding of these texts (CTF), from plans

The lengths are drawn from a log-normal distribution with the median 60. The first table has the share of padding in
padded minibatches of about 32 sequences, and the processor time for each minibatch that a source delivers, of all
threads together, as a ratio of the time with a number of samples: the least of several sweeps each, in turn. The
second table has the seconds until a timeline of many sequences delivers its first minibatch, and the time to go to a
state in the middle of its sweep.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cntkio import Budget, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs, infer_streams
from cntkio.timeline import Size, Timeline, Window

STREAMS = StreamDefs(w=StreamDef(field="w", shape=1000, is_sparse=True))
ROUNDS = 5


def lengths_of(count: int) -> npt.NDArray[np.uint32]:
    """Draw lengths."""
    return np.clip(np.random.default_rng(1).lognormal(np.log(60), 0.8, count), 1, 2000).astype(np.uint32)


def write(path: Path, lengths: npt.NDArray[np.uint32]) -> None:
    """Write a text with these lengths."""
    with path.open("w") as text:
        for key, length in enumerate(lengths.tolist()):
            text.write("".join(f"{key} |w {(key + 7 * at) % 1000}:1\n" for at in range(length)))


def sizes_for(mean_length: float, largest_pool: int = 16384) -> dict[str, Size]:
    """Return sizes whose minibatches have about 32 sequences."""
    samples = 32 * int(mean_length)
    sizes: dict[str, Size] = {"samples": samples, "budget of samples": Budget(samples=samples, oversize="alone")}
    for pool in (None, *(pool for pool in (256, 1024, 4096, 16384) if pool <= largest_pool)):
        name = "budget, padded" if pool is None else f"pool of {pool:,}"
        area = 2 * samples if pool is None else samples
        sizes[name] = Budget(padded=area, pool=pool, oversize="alone")
    return sizes


def sweep(source: MinibatchSource, size: Size) -> tuple[float, int, float]:
    """Return the seconds of processor time of a sweep, its number of minibatches, and its share of padding."""
    source.restore_from_checkpoint({"minibatchSourcePosition": 0})
    start, count, area = time.process_time(), 0, 0
    while (minibatch := source.read(size)) is not None:
        data = minibatch["w"]
        count, area = count + 1, area + data.num_sequences * data.num_steps
    return time.process_time() - start, count, 1 - source.num_samples / area


def print_padding(path: str) -> None:
    """Print the padding of a text with each size."""
    with MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1) as source:
        count, mean_length = source.num_sequences, source.num_samples / source.num_sequences
        print(f"{path}: {count:,} sequences of {mean_length:.1f} samples")
        for name, size in sizes_for(mean_length, count).items():
            steps = source.plan(size).sweep().steps
            print(f"{name:<20} {len(steps):11,}  {count / len(steps):9.1f}  {steps.padding:7.1%}")


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--sequences", type=int, default=100_000)
    parser.add_argument("--planned", type=int, default=10_000_000)
    arguments = parser.parse_args()
    for text in arguments.texts:
        print_padding(text)
    if arguments.texts:
        return
    with tempfile.TemporaryDirectory() as folder:
        lengths = lengths_of(arguments.sequences)
        path = Path(folder, "text.ctf")
        write(path, lengths)
        corpus = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=1 << 20)
        sizes = sizes_for(float(lengths.mean()))
        times: dict[str, list[float]] = {name: [] for name in sizes}
        found: dict[str, tuple[int, float]] = {}
        with MinibatchSource(corpus, max_sweeps=1, keep_data_in_memory=True) as source:
            for number in range(ROUNDS + 1):
                for name, size in sizes.items():
                    seconds, count, padding = sweep(source, size)
                    found[name] = count, padding
                    if number:
                        times[name].append(seconds / count)
    plain = times["samples"]
    print(f"{'size':<20} minibatches  sequences  padding  time per minibatch")
    for name, (count, padding) in found.items():
        ratio = min(times[name]) / min(plain)
        print(f"{name:<20} {count:11,}  {arguments.sequences / count:9.1f}  {padding:7.1%}  {ratio:18.2f}")

    lengths = lengths_of(arguments.planned)
    chunk_starts = np.append(np.arange(0, len(lengths), 10_000), len(lengths))
    print(f"\n{arguments.planned:,} sequences   first minibatch  to a state in the middle")
    for name, size in sizes_for(float(lengths.mean())).items():
        start = time.perf_counter()
        timeline = Timeline(lengths, chunk_starts, window=Window(128, "chunks"))
        timeline.read(size)
        first = time.perf_counter() - start
        state = {**timeline.state(), "position": timeline.num_samples // 2, "batch": 0}
        start = time.perf_counter()
        timeline.load_state(state)
        timeline.read(size)
        print(f"{name:<20} {first:14.2f} s  {time.perf_counter() - start:22.2f} s")


if __name__ == "__main__":
    main()

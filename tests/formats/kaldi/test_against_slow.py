"""Random binary archives of Kaldi have the values that a slow reader finds. (docs/formats/kaldi.md)"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from cntkio import KaldiDeserializer, MinibatchSource, read_kaldi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow.kaldi import read
from support.rounds import rounds

COLUMNS = 3


def archive_of(kind: str, rows: list[int], generator: np.random.Generator) -> bytes:
    found = b""
    for number, count in enumerate(rows):
        head = f"u{number} ".encode() + b"\0B"
        if kind == "classes":
            found += head + struct.pack("<bi", 4, count)
            found += b"".join(struct.pack("<bi", 4, one) for one in generator.integers(0, 9, count).tolist())
            continue
        head += kind.encode() + b" "
        if kind in ("FM", "DM"):
            values = (generator.normal(size=(count, COLUMNS)) * 10.0 ** generator.integers(-9, 9)).astype(
                f"<f{4 + 4 * (kind == 'DM')}"
            )
            found += head + struct.pack("<bibi", 4, count, 4, COLUMNS) + values.tobytes()
        elif kind in ("FV", "DV"):
            values = generator.normal(size=COLUMNS).astype(f"<f{4 + 4 * (kind == 'DV')}")
            found += head + struct.pack("<bi", 4, COLUMNS) + values.tobytes()
        else:
            least, scope = generator.normal(), abs(generator.normal()) * 10.0 ** generator.integers(-5, 5)
            found += head + struct.pack("<ffii", least, scope, count, COLUMNS)
            size = count * COLUMNS * (2 if kind == "CM2" else 1) + 8 * COLUMNS * (kind == "CM")
            found += generator.bytes(size)
    return found


@settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    kind=st.sampled_from(["FM", "DM", "FV", "DV", "CM", "CM2", "CM3", "classes"]),
    rows=st.lists(st.integers(1, 12), min_size=1, max_size=9), seed=st.integers(0, 2**32 - 1),
    chunk_size=st.integers(1, 500),
)  # fmt: skip
def test_random_archives_have_the_values_of_a_slow_reader(
    module_folder: Path, kind: str, rows: list[int], seed: int, chunk_size: int
) -> None:
    content = archive_of(kind, rows, np.random.default_rng(seed))
    path = module_folder / "a.ark"
    path.write_bytes(content)
    expected = read(content)
    options: dict[str, Any] = {"dtype": np.float64 if kind in ("DM", "DV") else np.float32}
    options |= {"as_class_ids": kind == "classes", "chunk_size_in_bytes": chunk_size}
    (found,) = read_kaldi(path, **options).values()
    whole = np.concatenate([values.reshape(-1) for values in expected.values()])
    assert found.values.dtype == whole.dtype
    assert found.values.tobytes() == whole.tobytes()
    with MinibatchSource(KaldiDeserializer(path, **options), max_sweeps=1) as source:
        for minibatch in source.minibatches(7):
            (data,) = minibatch.values()
            for key, values in zip(
                minibatch.keys_of_sequences.astype(np.str_).tolist(), data.as_sequences(), strict=True
            ):
                assert values.tobytes() == expected[key].tobytes()

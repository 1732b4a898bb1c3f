"""A damaged Parquet or Arrow file raises an error of cntkio that names the file, not an error of pyarrow."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cntkio import ConfigError, CorpusError, FormatError, write_ctf
from cntkio.cli import main
from cntkio.convert import joined

pa = pytest.importorskip("pyarrow")
from cntkio import arrow  # noqa: E402
from pyarrow import parquet  # noqa: E402

SEEDS = 400


@pytest.fixture(params=["parquet", "arrow", "stream"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write(path: Path, kind: str) -> None:
    data = {
        "x": [np.float32([[k, 0.5], [k, 2]]) for k in range(30)],
        "s": [scipy.sparse.csr_array(np.eye(3, 9, k % 5, dtype=np.float32)) for k in range(30)],
        "c": [scipy.sparse.csr_array(np.eye(2, 4, k % 3, dtype=np.float32)) for k in range(30)],
        "y": np.arange(30.0),
    }
    if kind == "stream":
        batches = arrow.RecordBatches(data, flat=["y"], ids=["c"])
        with pa.ipc.new_stream(path, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    else:
        getattr(arrow, f"write_{kind}")(path, data, flat=["y"], ids=["c"])


def read(path: Path) -> Any:
    with arrow.read(path).pieces() as pieces:
        return joined(pieces)


def damaged(whole: bytes, seed: int) -> bytes:
    """Flip a few bits of a file, or cut it."""
    generator, content = random.Random(seed), bytearray(whole)
    if seed % 5 == 0:
        return bytes(content[: generator.randrange(len(content))])
    for _ in range(generator.choice((1, 1, 1, 2, 8))):
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    return bytes(content)


def test_damage_is_an_error_of_ours_or_leaves_a_valid_table(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "whole", kind)
    whole, outcomes = (tmp_path / "whole").read_bytes(), {"error": 0, "read": 0}
    path = tmp_path / "damaged"
    for seed in range(SEEDS):
        path.write_bytes(damaged(whole, seed))
        try:
            minibatch = read(path)
        except FormatError as error:
            assert error.path == str(path) and str(error).startswith(str(path)), (seed, error)
            outcomes["error"] += 1
            continue
        except ConfigError as error:  # a valid table of other columns
            assert "column" in str(error), (seed, error)
            outcomes["error"] += 1
            continue
        outcomes["read"] += 1
        for data in minibatch.values():
            assert data.num_sequences == minibatch.num_sequences, seed
            assert data.indices is None or not len(data.indices) or data.indices.min() >= 0, seed
            assert data.indices is None or not len(data.indices) or data.indices.max() < data.stream.dim, seed
    assert min(outcomes.values()) > 10, outcomes


def test_every_beginning_of_a_file_is_an_error(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "whole", kind)
    whole = (tmp_path / "whole").read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / "cut").write_bytes(whole[:size])
        try:
            minibatch = read(tmp_path / "cut")
            assert kind == "stream" and minibatch.num_sequences in (0, 30)
        except FormatError as error:
            assert error.path == str(tmp_path / "cut")


def test_a_flipped_bit_in_a_page_of_parquet_names_the_row_group(tmp_path: Path) -> None:
    arrow.write_parquet(tmp_path / "a", {"x": np.arange(50_000.0)}, compression="none")
    content = bytearray((tmp_path / "a").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(FormatError, match=r"a: row group 0 is damaged: .*(CRC|checksum)"):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    "facts",
    [
        b"\xff",
        b"[]",
        b"{",
        b'{"role": 3}',
        b'{"role": "dense", "shape": "2"}',
        b'{"role": "dense", "shape": [0]}',
        b'{"role": "ids", "shape": [3], "dtype": "int8"}',
        b"[" * 100_000,
    ],
)
def test_damaged_metadata_name_their_column(facts: bytes, tmp_path: Path) -> None:
    field = pa.field("x", pa.float32(), metadata={b"cntkio": facts})
    with pytest.raises(FormatError, match="column 'x': its metadata are damaged"):
        arrow.read(pa.table([pa.array([1.0], pa.float32())], schema=pa.schema([field])))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([[1.0], None], "row 1, column 'x': 1 null;"),
        ([{"indices": [9], "values": [1.0]}], "row 0, column 'x': indices from 9 to 9"),
        ([2**64 - 1], "row 0, column 'x': the whole number 18446744073709551615 does not fit int64"),
    ],
)
def test_bad_values_are_errors_of_the_file_or_of_the_table(column: Any, words: str, tmp_path: Path) -> None:
    array = pa.array(column, pa.uint64()) if isinstance(column[0], int) else column
    table, shapes = pa.table({"x": array}), {"x": 3} if isinstance(column[0], dict) else None
    parquet.write_table(table, tmp_path / "a.parquet")
    for data, kind in ((tmp_path / "a.parquet", FormatError), (table, CorpusError)):
        error: Callable[..., Any] = kind
        with pytest.raises(error, match=words):  # type: ignore[call-overload]
            write_ctf(tmp_path / "a.ctf", arrow.read(data, shapes=shapes))


def test_the_command_line_prints_no_traceback(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "whole", kind)
    whole = (tmp_path / "whole").read_bytes()
    for seed in range(60):
        (tmp_path / "a").write_bytes(damaged(whole, seed))
        status = main(["convert", "--to", "cbf", "--input", str(tmp_path / "a"), "--output", str(tmp_path / "b")])
        complaint = capsys.readouterr().err
        assert status in (0, 1, 2) and "Traceback" not in complaint
        assert status == 0 or str(tmp_path / "a") in complaint or "column" in complaint, complaint

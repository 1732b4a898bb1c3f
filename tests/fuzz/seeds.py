"""The inputs that fuzz targets begin with, made from the recorded conformance cases: `python seeds.py FOLDER`.

FOLDER gets a folder for each target of `crates/fuzz` (the first bytes of these inputs choose a setting) and of
`targets.py`. Fixed findings stay in `findings`, which has a folder for each target.
"""

import io
import json
import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from cntkio.formats import mlf
from cntkio.formats.cbf.header import read_header
from cntkio.storage.text_input import InputFile
from support import ROOT
from support.packers import frames, member_of_blocks, members
from support.recorded import folder_of

from fuzz.targets import TARGETS

FINDINGS = Path(__file__).with_name("findings")
LONGEST = 4096
RUST = tuple(sorted(path.stem for path in (ROOT / "crates" / "fuzz" / "fuzz_targets").glob("*.rs")))
"""The targets of the Rust half."""


def files(area: str, *endings: str) -> list[bytes]:
    """The data of an area's files with these endings, except for long files."""
    paths = sorted((folder_of(area) / "data").rglob("*"))
    found = [path for path in paths if path.suffix in endings and 0 < path.stat().st_size <= LONGEST]
    return [path.read_bytes() for path in found]


def cbf_chunks() -> Iterator[bytes]:
    """The chunks of the binary files whose streams the Rust target can describe, with its setting before them."""
    for path in sorted((folder_of("cbf") / "data").glob("*.cbf")):
        try:
            file = InputFile(str(path))
            header = read_header(file)
        except ValueError:
            continue
        stream = header.streams[0]
        setting = stream.is_sparse | stream.is_double << 1 | stream.is_double << 2
        setting |= (header.layout == "documented") << 6
        if len(header.streams) > 1:
            second = header.streams[1]
            setting |= 8 | second.is_sparse << 4 | second.is_double << 5
        for begin, end, count in zip(header.begins, header.ends, header.num_sequences, strict=True):
            if len(header.streams) <= 2 and stream.dim <= 256 and count < 255 and end - begin <= LONGEST:
                yield bytes([setting, count, stream.dim - 1]) + file.read(int(begin), int(end - begin))


def svmlight_texts() -> Iterator[bytes]:
    """Texts in the svmlight format, with their setting before them."""
    yield b"\0" + b"1 1:0.5 3:2\n# c 9:9\n\n-1 2:1 # d\n3.5\n"
    yield b"\1" + b"1,2 1:0.5\n2:1 3:nan\n0 5:1e400\n"
    yield b"\2" + b"1 qid:7 0:1\n-1 qid:-8 2:.5 4:5.\n"
    yield b"\4" + b"1 qid:7 1:1\n2 qid:7 1:1 1:1\n1 qid:9 2:x\n"
    yield b"\x08" + b"1 2:1 1:1\n1 99999999999:1\nx 1:1\n1 1:1\n"


def archives() -> Iterator[bytes]:
    """The recorded archives, lists and maps of Kaldi."""
    for path in sorted((Path(__file__).parents[1] / "data" / "kaldi").iterdir()):
        if path.suffix != ".npz":
            yield path.read_bytes()


def tables() -> Iterator[bytes]:
    """Tables in each kind of file, with each kind of column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype=np.float32)), 2)
    numbers = pa.table(
        {"key": pa.array([1, 2, 3, 4], pa.uint64()), "x": lists, "y": pa.array([[1.0], [], [2.0], [3.0]])}
    )
    kind = pa.struct([("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))])
    entries = pa.array([[{"indices": [1, 8], "values": [0.5, 2]}], [], [{"indices": [], "values": []}]], pa.list_(kind))
    words = pa.table({"key": ["b", "a", "c"], "s": entries, "n": [1, None, 3]})
    classes = pa.table({"word": pa.array(["b", "a", "b"]).dictionary_encode(), "w": [[1, 2], [3], [2**60]]})
    for table in (numbers, words, classes):
        for packing in ("snappy", "none"):
            whole = io.BytesIO()
            pq.write_table(table, whole, row_group_size=2, compression=packing)
            yield whole.getvalue()
        for new in (pa.ipc.new_file, pa.ipc.new_stream):
            whole = io.BytesIO()
            with new(whole, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
            yield whole.getvalue()


def binary_labels() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        mlf.write_binary_mlf(Path(folder, "a"), [("u1", np.array([0, 0, 1])), ("u2", np.array([1]))])
        return Path(folder, "a").read_bytes()


def rust(target: str) -> Iterator[bytes]:
    """The seeds of a target of `crates/fuzz`."""
    if target in ("ctf", "ctf_fast"):
        for number, text in enumerate(files("ctf", ".ctf", ".txt")):
            yield bytes([number * 37 % 256]) + text
    elif target == "svmlight":
        yield from svmlight_texts()
    elif target == "kaldi":
        yield from archives()
    elif target == "cbf":
        yield from cbf_chunks()
    elif target == "htk":
        for number, text in enumerate(files("htk", ".scp")):
            yield bytes([128 | number % 16, 0, 0, 0]) + text
    elif target == "mlf":
        for number, text in enumerate(files("htk", ".mlf")):
            yield bytes([number % 128, 3]) + text
        yield bytes([128, 3]) + binary_labels()
    elif target == "compressed":
        for number, text in enumerate(files("ctf", ".ctf", ".txt")):
            for kind, packer in enumerate((member_of_blocks, members, frames)):
                yield bytes([number * 34 % 256 | kind // 2, number % 60, 10, 200]) + packer(text, random.Random(number))


def python(target: str) -> Iterator[bytes]:
    """The seeds of a target of `targets.py`."""
    if target == "config":
        yield from (path.read_bytes() for path in sorted(folder_of("config").glob("*.cntk")))
    elif target == "ctf":
        yield from files("ctf", ".ctf", ".txt")
    elif target == "svmlight":
        yield from svmlight_texts()
    elif target == "kaldi":
        yield from archives()
    elif target in ("ctf_cache", "mlf_cache"):
        for place in (0, 12, 16, 24, 100, 300, 500, 700, 900, 1100, 1300):
            yield struct.pack("<H", place) + bytes([255, 0])
        yield b"\xff\xff"
    elif target == "cbf":
        yield from files("cbf", ".cbf", ".bin")
    elif target == "htk_header":
        yield from (bytes([2, 0]) + data for data in files("htk", ".feat", ".fea", ".mfc"))
        yield struct.pack(">BBiIHH", 1, 0, 4, 100_000, 8, 9) + bytes(32)
        yield struct.pack("<BBiIHH", 1, 0, 6, 100_000, 4, 9 | 0o2000) + bytes(24)
    elif target == "htk_list":
        yield from files("htk", ".scp")
        yield b"a.mfc\nb=b.mfc[0,1]\n'c d' = \"a.mfc\" [ 1 , 2 ]\n"
    elif target == "labels":
        yield from (b"\0" + text for text in files("htk", ".mlf"))
        yield b"\1" + binary_labels()
        yield b"\2sil\r\naa\n"
        yield b"\3sil 10\naa 01\n"
    elif target == "state":
        for path in (["settings"], ["timeline", 0], [0], [1, 0], [2, 1], ["position"]):
            yield from (json.dumps([*path, value]).encode() for value in (None, -1, 2**70, [], "x", 1e999, {}))
        yield b"null"
    elif target == "tables":
        yield from tables()
    elif target == "converters":
        yield b"a b\nc\n\0a\nb\nc\n"
        yield b"0.5 1.25 2\n3 4 0\n"
    elif target == "joins":
        yield b"a,b,c;c,*/a,a"
        yield b"d/a,d/e/a,x/b;a,e/a"


def found(target: str) -> Iterator[bytes]:
    """Inputs of earlier findings, which were fixed."""
    return (path.read_bytes() for path in sorted((FINDINGS / target).glob("*")))


def main() -> None:
    """Write all seeds."""
    folder = Path(sys.argv[1])
    for language, names, make in (("rust", RUST, rust), ("python", tuple(TARGETS), python)):
        for target in names:
            made = [seed for seed in make(target) if len(seed) <= LONGEST + 8]
            (folder / language / target).mkdir(parents=True, exist_ok=True)
            for number, seed in enumerate([*made, *(found(target) if language == "python" else ())]):
                (folder / language / target / f"seed-{number}").write_bytes(seed)


if __name__ == "__main__":
    main()

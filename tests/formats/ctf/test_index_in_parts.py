"""An index that several processes make in parts, and one joins: it says what the index of one pass says."""

import gzip
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cntkio import CntkIoError, ConfigError, CorpusError, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from cntkio.cli import main
from cntkio.formats.ctf import PartOfText, index, index_part, join_parts
from cntkio.storage import open_input
from support.range_server import RangeServer, range_server
from support.rounds import rounds

LINES = (b"|x 1 2\n", b"|x 3 4 |y 1:1\n", b"|y 2:1\n", b"\n", b"  \t\n", b"|# a comment\n", b"|x 5 6\r\n")
IDS = (b"%d ", b"%d\t", b"%d", b"0%d ", b"")


def random_text(chance: random.Random) -> bytes:
    """Return lines of all kinds. Ids repeat, are missing, or need 64 bits."""
    has_ids, key, lines = chance.random() < 0.7, chance.choice((0, 7, 2**32 - 3, 2**63)), []
    for _ in range(chance.randrange(1, 60)):
        key = max(key + chance.choice((0, 0, 0, 1, 1, 2, -1)), 0)
        mark = chance.choice(IDS) if has_ids else b""
        lines.append((mark % key if b"%" in mark else mark) + chance.choice(LINES))
    first = b"%d |x 1 2\n" % key if has_ids else b"|x 1 2\n"
    before = chance.choice((b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\n\n", b"  "))
    text = before + first + b"".join(lines)
    return text.removesuffix(b"\n") if chance.random() < 0.3 else text


def random_options(chance: random.Random) -> dict[str, Any]:
    defines = chance.random() < 0.3
    return {
        "streams": StreamDefs(
            x=StreamDef(field="x", shape=2, defines_mb_size=defines), y=StreamDef(field="y", shape=9, is_sparse=True)
        ),
        "skip_sequence_ids": chance.random() < 0.3,
        "chunk_size_in_bytes": chance.choice((1, 50, 1000)),
        "cache_index": True,
    }


def values_of(deserializer: CTFDeserializer) -> list[Any]:
    """Return what is read up to the first error, and the error."""
    found: list[Any] = []
    try:
        with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
            for minibatch in source.minibatches(1):
                found += [(data.asarray().tolist(), data.lengths.tolist()) for data in minibatch.values()]
    except CntkIoError as error:
        found.append(str(error))
    return found


def outcome(work: Callable[[CTFDeserializer], Path], deserializer: CTFDeserializer) -> tuple[Any, ...] | str:
    """Return what is read with the index cache that work writes, which is removed, or the error."""
    try:
        path = work(deserializer)
        before = path.stat()
        with closing(deserializer.open()) as corpus:
            table, layout = corpus.index.table, corpus.index.layout
            facts = [*table.keys], table.lengths.tolist(), table.chunk_starts.tolist(), layout.remarks, layout.content
        values = values_of(deserializer)
    except CntkIoError as error:
        return str(error)
    assert path.stat().st_mtime_ns == before.st_mtime_ns  # opening has not made another index
    path.unlink()
    return facts, values


def joined(deserializer: CTFDeserializer, num_parts: int) -> Path:
    for number in range(1, num_parts + 1):
        assert len(index_part(deserializer, PartOfText(number, num_parts)).indexes) == 1
    return join_parts(deserializer, num_parts).indexes[0]


@pytest.fixture(autouse=True)
def many_shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for name in ("SHARE", "SHARE_WITH_IDS", "AREA"):
        monkeypatch.setattr(index, name, 60)
    monkeypatch.setattr(open_input.RemoteInput, "reach", 70)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as served:
        yield served


@pytest.mark.parametrize("place", ["disk", "store"])
def test_joined_parts_are_the_index_of_one_pass(place: str, server: RangeServer, tmp_path: Path) -> None:
    num_equal = 0
    for seed in range(rounds(120) if place == "disk" else rounds(30)):
        chance = random.Random(seed)
        text, options = random_text(chance), random_options(chance)
        path = tmp_path / f"{seed}.ctf"
        path.write_bytes(text)
        server.files[path.name] = text
        deserializer = CTFDeserializer(path if place == "disk" else f"{server.url}/{path.name}", **options)
        whole = outcome(lambda corpus: corpus.index_caches()[0], deserializer)
        parts = outcome(partial(joined, num_parts=chance.randrange(1, 9)), deserializer)
        is_error = isinstance(whole, str)
        # An index of no sequence can be made; only opening refuses it.
        assert parts == whole or (is_error and "nothing is left" in str(whole)), (seed, text)
        num_equal += not is_error
    assert num_equal > rounds(15)


def test_missing_and_stale_parts_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(b"|x 1 2\n" * 30)
    deserializer = CTFDeserializer(path, {"x": StreamDef(field="x", shape=2)}, cache_index=True)
    index_part(deserializer, PartOfText(1, 3))
    with pytest.raises(CorpusError, match=r"part 2/3 is missing, part 3/3 is missing; make it with --part 2/3"):
        join_parts(deserializer, 3)
    joined(deserializer, 3)
    path.write_bytes(b"|x 1 3\n" * 31)
    index_part(deserializer, PartOfText(1, 3))
    with pytest.raises(CorpusError, match=r"part 2/3 is of another state of the text, or damaged, part 3/3"):
        join_parts(deserializer, 3)
    other = CTFDeserializer(path, deserializer.streams, cache_index=True, chunk_size_in_bytes=7)
    with pytest.raises(CorpusError, match="part 1/3 is missing"):
        join_parts(other, 3)


def test_damaged_parts_are_errors(tmp_path: Path) -> None:
    path, chance = tmp_path / "a.ctf", random.Random(1)
    path.write_bytes(b"".join(b"%d |x 1 2\n" % key for key in range(40)))
    deserializer = CTFDeserializer(path, {"x": StreamDef(field="x", shape=2)}, cache_index=True)
    whole = joined(deserializer, 2).read_bytes()
    (part,) = index_part(deserializer, PartOfText(2, 2)).indexes
    content = part.read_bytes()
    for _ in range(rounds(60)):
        at = chance.randrange(len(content))
        part.write_bytes(content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :])
        with pytest.raises(CorpusError, match=r"damaged"):
            join_parts(deserializer, 2)
    part.write_bytes(content)
    assert join_parts(deserializer, 2).indexes[0].read_bytes() == whole


def test_compressed_and_several_texts_have_no_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf.gz"
    path.write_bytes(gzip.compress(b"|x 1 2\n" * 30))
    streams = {"x": StreamDef(field="x", shape=2)}
    with pytest.raises(ConfigError, match="is compressed with gzip"):
        index_part(CTFDeserializer(path, streams, cache_index=True), PartOfText(1, 2))
    with pytest.raises(ConfigError, match="2 files; expected one text"):
        join_parts(CTFDeserializer([path, "b.ctf"], streams, cache_index=True), 2)


def test_machines_share_the_parts_of_a_text_in_a_store(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["a.ctf"] = b"".join(b"%d |x %d 1\n|y 1:1\n" % (key, key) for key in range(50))
    name = f"{server.url}/a.ctf"
    for number in range(1, 4):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(number)))
        assert main(["index", "--part", f"{number}/3", name]) == 0
    assert len([file for file in server.files if file.endswith(".index")]) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    capsys.readouterr()
    assert main(["index", "--json", "--join", "3", name]) == 0
    assert '"sequences": 50, "samples": 100' in capsys.readouterr().out
    assert len([file for file in server.files if file.endswith(".index")]) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a third"))
    streams = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=2, is_sparse=True))
    with MinibatchSource(CTFDeserializer(name, streams, cache_index=True), max_sweeps=1) as source:
        assert source.num_sequences == 50


@pytest.mark.parametrize("words", [["--part", "0/3"], ["--part", "4/3"], ["--part", "2"], ["--join", "0"]])
def test_impossible_parts_are_wrong_calls(words: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["index", *words, "examples/iris/iris.ctf"])
    assert raised.value.code == 2


def test_parts_are_only_of_texts_and_without_a_manifest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["convert", "-q", "examples/iris/iris.ctf", str(tmp_path / "a.cbf")]) == 0
    assert main(["index", "--part", "1/2", str(tmp_path / "a.cbf")]) == 2
    assert main(["index", "--part", "1/2", "--join", "2", "examples/iris/iris.ctf"]) == 2
    assert "apply only to texts of CNTK" in (error := capsys.readouterr().err)
    assert "leave out --join and --manifest" in error

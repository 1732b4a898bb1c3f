"""The promises that the corpora of all formats keep, and that a new format gets from the corpus of all formats."""

import contextlib
import gzip
import pickle
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CntkIoError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    write_cbf,
)
from cntkio.cli import main
from cntkio.convert import format_of_name
from cntkio.formats import Corpus, detect, htk
from cntkio.formats.contract import OPENING, Opening
from cntkio.survey.figures import Block
from support.damage import damaged
from support.forks import in_a_fork
from support.rounds import step
from support.toy_format import ROW, ToyDeserializer

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

XY = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=5, is_sparse=True))
Write = Callable[[Path, list[int]], None]


class Kind(NamedTuple):
    """A format: how a file with some keys is written, and the deserializer of one file or of several.

    Attributes:
        write: Writes a file.
        deserializer: Makes the deserializer of one file or of several.
        is_packed: Whether the file is read where it is if it is compressed.
        is_in_stores: Whether the file is also read in a store.
    """

    write: Write
    deserializer: Callable[[Any], Any]
    is_packed: bool = False
    is_in_stores: bool = True


def write_ctf_lines(path: Path, keys: list[int]) -> None:
    path.write_text("".join(f"{key} |x {key} 2 |y {key % 5}:1\n" for key in keys))


def write_binary(path: Path, keys: list[int]) -> None:
    write_cbf(path, {"x": np.array([[key, 2] for key in keys], np.float32)})


def write_list(path: Path, keys: list[int]) -> None:
    """Two frames for each key in one feature file, and the list of the utterances."""
    frames = path.with_suffix(".mfc")
    values = [value for key in keys for value in (key, 1, key, 2)]
    frames.write_bytes(struct.pack(f">iihh{len(values)}f", 2 * len(keys), 100000, 8, 9, *values))
    ranges = (f"u{key}={frames.name}[{2 * place},{2 * place + 1}]\n" for place, key in enumerate(keys))
    path.write_text("".join(ranges))


def write_labels(path: Path, keys: list[int]) -> None:
    path.with_name("states").write_text("one\ntwo\n")
    entries = (f'"u{key}"\n0 {key}00000 one\n{key}00000 {key + 1}00000 two\n.\n' for key in keys)
    path.write_text("#!MLF!#\n" + "".join(entries))


def write_archive(path: Path, keys: list[int]) -> None:
    """Two frames of two values for each key."""
    header = b" \0BFM \4\2\0\0\0\4\2\0\0\0"
    path.write_bytes(b"".join(b"u%d%s" % (key, header) + struct.pack("<4f", key, 1, key, 2) for key in keys))


def write_table(path: Path, keys: list[int]) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    table = pa.table({"key": keys, "x": [[key, 2] for key in keys], "y": [float(key) for key in keys]})
    parquet.write_table(table, path, row_group_size=3, write_page_checksum=True)


def write_svmlight(path: Path, keys: list[int]) -> None:
    path.write_text("".join(f"{key} 1:{key}.5 3:2\n" for key in keys))


def write_toy(path: Path, keys: list[int]) -> None:
    path.write_text("".join(f"{key} {key}.5 2\n" for key in keys))


def tables(names: Any) -> Any:
    return pytest.importorskip("cntkio.arrow", exc_type=ModuleNotFoundError).ArrowDeserializer(names)


def first_of(names: Any) -> Path:
    return Path(names if isinstance(names, str) else names[0])


KINDS = {
    "ctf": Kind(write_ctf_lines, lambda names: CTFDeserializer(names, XY, chunk_size_in_bytes=50), is_packed=True),
    "cbf": Kind(write_binary, CBFDeserializer, is_in_stores=False),
    "htk": Kind(
        write_list,
        lambda names: HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=names, shape=2))),
        is_in_stores=False,
    ),
    "mlf": Kind(
        write_labels,
        lambda names: HTKMLFDeserializer(
            str(first_of(names).with_name("states")), StreamDefs(L=StreamDef(mlf=names, shape=2))
        ),
        is_in_stores=False,
    ),
    "kaldi": Kind(write_archive, lambda names: KaldiDeserializer(names, chunk_size_in_bytes=40), is_packed=True),
    "parquet": Kind(write_table, tables),
    "svmlight": Kind(
        write_svmlight,
        lambda names: SvmlightDeserializer(names, zero_based=False, chunk_size_in_bytes=50),
        is_packed=True,
    ),
    "toy": Kind(write_toy, ToyDeserializer, is_packed=True),
}
KEYS = [3, 1, 4, 15, 9, 2, 6, 5]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kind:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(htk.corpus, "CHUNK_FRAMES", 4)
    return KINDS[request.param]


def opened(kind: Kind, names: Any, opening: Opening = OPENING) -> Corpus:
    corpus: Corpus = kind.deserializer(names).open(opening)
    return corpus


def written(kind: Kind, name: str = "a", keys: list[int] = KEYS) -> str:
    kind.write(Path(name), keys)
    return name


def content(corpus: Corpus, chunk_id: int, sequences: Any = None) -> list[Any]:
    """For each sequence of a chunk the samples of each stream; the errors of the chunk are counted."""
    loaded = corpus.load(chunk_id, sequences)
    corpus.account_for(loaded)
    count = loaded.chunk.num_sequences
    streams = Block(corpus.streams, np.arange(count), np.arange(count), loaded).streams.values()
    arrays = [data.asarray() for data in streams]
    steps = [np.diff(data.offsets).tolist() for data in streams]
    return [
        [array[index][: num_steps[index]].tolist() for array, num_steps in zip(arrays, steps, strict=True)]
        for index in range(count)
    ]


def contents(corpus: Corpus) -> list[Any]:
    return [sequence for chunk_id in range(corpus.table.num_chunks) for sequence in content(corpus, chunk_id)]


def test_a_table_describes_each_chunk(kind: Kind) -> None:
    with contextlib.closing(opened(kind, written(kind))) as corpus:
        table = corpus.table
        counts = [corpus.load(chunk_id).chunk.num_sequences for chunk_id in range(table.num_chunks)]
        assert counts == np.diff(table.chunk_starts).tolist()
        assert len(table.keys) == table.num_sequences == len(set(table.keys[:].tolist())) == len(KEYS)
        lengths = [max(len(samples) for samples in sequence) for sequence in contents(corpus)]
        assert table.lengths.tolist() == lengths


def test_any_thread_loads_any_chunk_at_any_time(kind: Kind) -> None:
    with contextlib.closing(opened(kind, written(kind))) as corpus, ThreadPoolExecutor(8) as threads:
        chunk_ids = [*range(corpus.table.num_chunks)]
        expected = [content(corpus, chunk_id) for chunk_id in chunk_ids]
        asked = [*reversed(chunk_ids)] * 20
        found = threads.map(lambda chunk_id: content(corpus, chunk_id), asked)
        assert list(found) == [expected[chunk_id] for chunk_id in asked]


def test_a_part_of_a_chunk_has_the_chosen_sequences(kind: Kind) -> None:
    with contextlib.closing(opened(kind, written(kind))) as corpus:
        assert corpus.index.loads_parts
        whole = content(corpus, 0)
        chosen = [0, len(whole) - 1] if len(whole) > 1 else [0]
        assert content(corpus, 0, np.array(chosen, np.uint32)) == [whole[index] for index in chosen]


def test_several_files_are_their_sequences_in_turn(kind: Kind) -> None:
    whole, parts = written(kind), [written(kind, f"part{begin}", KEYS[begin : begin + 3]) for begin in (0, 3, 6)]
    with contextlib.closing(opened(kind, whole)) as one, contextlib.closing(opened(kind, parts)) as several:
        assert several.table.keys[:].tolist() == one.table.keys[:].tolist()
        assert contents(several) == contents(one)
        texts = several.places(np.arange(len(KEYS))).texts()
        assert [name[: len("part0")] for name in texts] == ["part0"] * 3 + ["part3"] * 3 + ["part6"] * 2
        assert several.index.fingerprint != one.index.fingerprint


def test_a_fingerprint_tells_corpora_with_other_keys_or_contents_apart(kind: Kind) -> None:
    names = written(kind), written(kind, "again"), written(kind, "other", [*KEYS[:-1], 8])
    same, again, other = (contextlib.closing(opened(kind, name)) for name in names)
    with same as first, again as second, other as third:
        assert first.index.fingerprint == second.index.fingerprint
        assert first.index.fingerprint != third.index.fingerprint


def test_an_index_and_its_deserializer_can_be_pickled(kind: Kind) -> None:
    name = written(kind)
    with contextlib.closing(opened(kind, name)) as corpus:
        index = pickle.loads(pickle.dumps(corpus.index))
        again = pickle.loads(pickle.dumps(kind.deserializer(name))).open()
        with contextlib.closing(again):
            assert index.fingerprint == again.index.fingerprint == corpus.index.fingerprint
            assert index.table.keys[:].tolist() == corpus.table.keys[:].tolist()
            assert contents(again) == contents(corpus)


def test_a_fork_loads_what_its_parent_opened(kind: Kind) -> None:
    with contextlib.closing(opened(kind, written(kind))) as corpus:
        assert in_a_fork(lambda: contents(corpus)) == repr(contents(corpus))


def test_damaged_files_are_read_or_refused_by_name(kind: Kind) -> None:
    name = written(kind, keys=[1, 2])
    messages = []
    whole = Path(name).read_bytes()
    cases = [*damaged(whole)][:: step(3) if len(whole) > 1000 else 1]
    for data in cases:
        Path(name).write_bytes(data)
        try:
            with contextlib.closing(opened(kind, name, Opening(trace_level=0))) as corpus:
                contents(corpus)
                corpus.places(np.arange(corpus.table.num_sequences))
        except (CntkIoError, OSError) as error:
            messages.append(str(error))
    assert len(messages) > len(cases) // 4  # almost every prefix is refused
    assert [message for message in messages if name not in message and ".mfc" not in message] == []


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.is_packed], indirect=True)
def test_a_compressed_file_is_read_as_the_plain_file(kind: Kind) -> None:
    Path("a.gz").write_bytes(gzip.compress(Path(written(kind)).read_bytes()))
    compare(kind, "a.gz")


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.is_in_stores], indirect=True)
def test_a_file_in_a_store_is_read_as_a_local_file(kind: Kind) -> None:
    fsspec.filesystem("memory").pipe("memory://every format/a", Path(written(kind)).read_bytes())
    compare(kind, "memory://every format/a")


def compare(kind: Kind, name: str) -> None:
    """Compare a file with the file `a`: contents, keys and places."""
    with contextlib.closing(opened(kind, "a")) as plain, contextlib.closing(opened(kind, name)) as other:
        assert contents(other) == contents(plain)
        assert other.table.keys[:].tolist() == plain.table.keys[:].tolist()
        texts = [place.replace("a:", f"{name}:") for place in plain.places(np.arange(3)).texts()]
        assert other.places(np.arange(3)).texts() == texts


def test_one_row_gives_a_format_the_verbs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(detect.KINDS, "toy", ROW)
    write_toy(Path("a.toy"), [7, 9])
    for verb in ("inspect", "head", "check", "plan"):
        assert main([verb, "a.toy"]) == 0, verb
    assert "toy text" in capsys.readouterr().out
    assert main(["convert", "a.toy", "a.ctf"]) == 0
    assert Path("a.ctf").read_text() == "7\t|x 7.5 2\n9\t|x 9.5 2\n"
    assert main(["convert", "a.ctf", "b.toy"]) == 0
    assert Path("b.toy").read_text() == "0 7.5 2\n1 9.5 2\n"
    assert format_of_name("c.toy") == "toy"
    assert main(["convert", "--num-files", "2", "a.ctf", "part-*.toy"]) == 0
    assert [path.read_text() for path in sorted(Path().glob("part-*.toy"))] == ["0 7.5 2\n", "1 9.5 2\n"]
    Path("bad.toy").write_text("7 7.5 2\n8 7.5 x\n")
    capsys.readouterr()
    assert main(["check", "bad.toy"]) == 1
    assert "bad.toy:2" in (found := capsys.readouterr().out)
    assert "bad-number" in found
    assert main(["convert", "a.toy", "b.ctf", "--precision", "double"]) == 2
    assert "applies only to" in capsys.readouterr().err


def test_each_kind_names_functions_that_exist() -> None:
    pytest.importorskip("pyarrow")
    for kind in detect.KINDS.values():
        for name in filter(None, (kind.reader, kind.in_files, kind.writer, kind.advice_on_words)):
            assert callable(detect.function_named(name)), name
    written = {kind.form for kind in detect.KINDS.values() if kind.writer}
    assert written == set(get_args(detect.FileFormat))

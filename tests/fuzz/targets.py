"""Fuzz targets: any bytes are data or raise an error of cntkio; any other outcome is a finding.

A target is a function that takes a folder for its own use, and returns the function that takes the bytes.
`seeds.py` makes the first inputs, `run.py` runs the targets, and `test_targets.py` runs them on the seeds.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cntkio import (
    CBFDeserializer,
    CheckpointError,
    CntkIoError,
    CTFDeserializer,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
)
from cntkio.config.files import configuration
from cntkio.config.reading import read_section, readers_of
from cntkio.convert import pieces_of, txt_to_ctf, uci_to_ctf
from cntkio.formats import htk, mlf
from cntkio.formats.table import Keys, SequenceTable
from cntkio.source.join import join

Target = Callable[[bytes], None]
TEXT = "".join(f"{n} |x {n} {n}.5 |y {n}:1\n{n} |x 0 1\n" for n in range(20))
STREAMS = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=20, is_sparse=True))


@contextmanager
def our_errors() -> Iterator[None]:
    """Ignore the errors that any input may cause."""
    try:
        yield
    except (CntkIoError, OSError, MemoryError):
        return


def loaded(deserializer: Any) -> list[tuple[Any, ...]]:
    """Open a corpus, load and account for all chunks, and return the contents of its table."""
    with closing(deserializer.open()) as corpus:
        table = corpus.table
        for chunk_id in range(min(table.num_chunks, 20)):
            corpus.account_for(corpus.load(chunk_id))
        return list(zip(table.keys.tolist(), table.lengths.tolist(), strict=True))


def config(folder: Path) -> Target:
    """A configuration: text, and the readers in it."""

    def run(data: bytes) -> None:
        path = folder / "a.cntk"
        path.write_bytes(data.replace(b"include=", b"include ="))
        with our_errors():
            top = configuration([f"configFile={path}"])
            for name in readers_of(top)[:5]:
                with our_errors():
                    understood = read_section(top, name)
                    assert understood.to_python() and understood.facts()
                    assert hash(repr(understood)) == hash(repr(read_section(top, name)))

    return run


def ctf_cache(folder: Path) -> Target:
    """The index cache of a text: whatever its content, the sequences are as in the text."""
    path = folder / "a.ctf"
    path.write_text(TEXT)
    deserializer = CTFDeserializer(path, STREAMS, cache_index=True, chunk_size_in_bytes=64)
    expected = loaded(deserializer)
    (cache,) = folder.glob("a.ctf.*.index")
    return against_cache(cache, deserializer, expected)


def mlf_cache(folder: Path) -> Target:
    """The index cache of a label file."""
    path = folder / "a.mlf"
    mlf.write_mlf(path, [(f"u{n}", np.arange(n + 1) % 3) for n in range(9)], ["a", "b", "c"])
    mlf.write_mapping(folder / "states", ["a", "b", "c"])
    streams = StreamDefs(L=StreamDef(mlf=path, shape=3))
    deserializer = HTKMLFDeserializer(folder / "states", streams, cache_index=True)
    expected = loaded(deserializer)
    (cache,) = folder.glob("a.mlf.*.index")
    return against_cache(cache, deserializer, expected)


def against_cache(cache: Path, deserializer: Any, expected: list[tuple[Any, ...]]) -> Target:
    sound = cache.read_bytes()

    def run(data: bytes) -> None:
        # The first two bytes are the offset at which the rest replaces bytes of the sound cache; 0xFFFF: all of it.
        place = int.from_bytes(data[:2], "little")
        rest = data[2:]
        cache.write_bytes(rest if place == 0xFFFF else sound[:place] + rest + sound[place + len(rest) :])
        assert loaded(deserializer) == expected

    return run


def cbf(folder: Path) -> Target:
    """A binary file, mapped and copied."""
    path = folder / "a.cbf"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        found: list[Any] = []
        for is_mapped in (True, False):
            found.append(None)
            with our_errors():
                found[-1] = loaded(CBFDeserializer(path, memory_map=is_mapped))
        assert found[0] == found[1]

    return run


def htk_header(folder: Path) -> Target:
    """A feature file, read whole, by a range, and as CNTK reads it."""
    path = folder / "a.mfc"
    scp = folder / "a.scp"

    def run(data: bytes) -> None:
        path.write_bytes(data[2:])
        dim = 1 + int.from_bytes(data[:1], "little") % 8
        for text, is_compatible in (("u=.../a.mfc", False), ("u=.../a.mfc[0,2]", False), ("u=.../a.mfc[0,2]", True)):
            scp.write_text(text)
            streams = StreamDefs(F=StreamDef(scp=scp, shape=dim))
            with our_errors():
                loaded(HTKFeatureDeserializer(streams, compatible=is_compatible))

    return run


def htk_list(folder: Path) -> Target:
    """A list of utterances in a folder with two feature files."""
    htk.write_features(folder / "a.mfc", np.zeros((9, 2)))
    htk.write_features(folder / "b.mfc", np.zeros((3, 2)), compressed=True)
    scp = folder / "a.scp"

    def run(data: bytes) -> None:
        scp.write_bytes(data)
        for is_compatible in (False, True):
            streams = StreamDefs(F=StreamDef(scp=scp, shape=2))
            with our_errors():
                loaded(HTKFeatureDeserializer(streams, prefix=str(folder), compatible=is_compatible))

    return run


def labels(folder: Path) -> Target:
    """Label files of both kinds, the mapping file, or the file of targets; the first byte chooses one."""
    names = ("a.mlf", "a.bmlf", "states", "targets")

    def run(data: bytes) -> None:
        (folder / "a.mlf").write_text('#!MLF!#\n"u1"\n0 3 sil\n.\n"*/u2"\n0 2 aa\n.\n')
        mlf.write_binary_mlf(folder / "a.bmlf", [("u1", np.zeros(3, int))])
        (folder / "states").write_text("sil\naa\n")
        (folder / "targets").write_text("sil 10\naa 01\n")
        (folder / names[data[0] % 4 if data else 0]).write_bytes(data[1:])
        text = StreamDefs(L=StreamDef(mlf=folder / "a.mlf", shape=2))
        for options in ({}, {"compatible": True}, {"labelToTargetMappingFile": folder / "targets"}):
            with our_errors():
                loaded(HTKMLFDeserializer(folder / "states", text, **options))
        with our_errors():
            loaded(HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=folder / "a.bmlf", shape=2))))

    return run


def ctf(folder: Path) -> Target:
    """A text, with any number of errors forgiven."""
    path = folder / "a.ctf"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        for options in ({"max_errors": -1}, {"skip_sequence_ids": True, "chunk_size_in_bytes": 9}):
            with our_errors():
                loaded(CTFDeserializer(path, STREAMS, **options))  # type: ignore[arg-type]

    return run


def svmlight(folder: Path) -> Target:
    """A svmlight text, in chunks of any size; the first byte chooses the options."""
    path = folder / "a.svm"

    def run(data: bytes) -> None:
        choice = data[0] if data else 0
        path.write_bytes(data[1:])
        options: dict[str, Any] = {"multilabel": bool(choice & 1), "query_id": bool(choice & 2)}
        options["by_query"], options["max_errors"] = bool(choice & 4), -1 if choice & 8 else 0
        found: list[Any] = []
        for size in (1 << 20, 7):
            found.append(None)
            with our_errors():
                found[-1] = loaded(SvmlightDeserializer(path, chunk_size_in_bytes=size, **options))
        if None not in found:
            assert found[0] == found[1]

    return run


def kaldi(folder: Path) -> Target:
    """An archive, a list or a map, in chunks of any size."""
    path = folder / "a.ark"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        for content in (None, "classes", "map"):
            with our_errors():
                loaded(KaldiDeserializer(path, content=content, chunk_size_in_bytes=64))  # type: ignore[arg-type]

    return run


def state(folder: Path) -> Target:
    """A state: it is refused, or reading continues; a refused state changes nothing."""
    (folder / "a.ctf").write_text(TEXT)
    source = MinibatchSource(CTFDeserializer(folder / "a.ctf", STREAMS), max_sweeps=2)
    source.next_minibatch(4)
    sound = source.state_dict()

    def run(data: bytes) -> None:
        try:
            given = json.loads(data)
        except (ValueError, RecursionError):
            return
        # A list of a path and a value changes the sound state; anything else is the state.
        given = changed(sound, given[:-1], given[-1]) if isinstance(given, list) and given else given
        source.load_state_dict(sound)
        try:
            source.load_state_dict(given)
        except CheckpointError:
            assert source.state_dict() == sound
            return
        with our_errors():
            source.next_minibatch(4)

    return run


def changed(value: Any, path: list[Any], to: Any) -> Any:
    if not path or not isinstance(value, dict):
        return to
    key = sorted(value)[path[0] % len(value)] if isinstance(path[0], int) and value else str(path[0])
    return {**value, key: changed(value.get(key), path[1:], to)}


def tables(folder: Path) -> Target:
    """A Parquet or an Arrow file, read as a corpus and as a table of the writers. Errors name the file."""
    from cntkio.arrow import ArrowDeserializer, read

    def run(data: bytes) -> None:
        path = folder / "a.table"
        path.write_bytes(data)
        options: dict[str, Any] = {"shapes": {"s": 9}} if b"indices" in data else {}
        for nulls in ("error", "drop"):
            try:
                loaded(ArrowDeserializer(path, nulls=nulls, **options))  # type: ignore[arg-type]
            except FormatError as error:
                assert error.path == str(path), error
            except (CntkIoError, OSError, MemoryError):
                pass
        with our_errors(), pieces_of(read(path, **options)) as pieces:
            for _ in pieces.pieces:
                pass

    return run


def converters(folder: Path) -> Target:
    """The readers of the converters: tokens with a dictionary, and numbers."""
    path, words, out = folder / "in.txt", folder / "words.txt", folder / "out.ctf"

    def run(data: bytes) -> None:
        first, _, second = data.partition(b"\0")
        path.write_bytes(first)
        words.write_bytes(second or b"a\nb\nc\n")
        with our_errors():
            txt_to_ctf(path, out, [words])
        with our_errors():
            uci_to_ctf(path, out, features_start=0, features_dim=2, labels_start=2, num_labels=3)

    return run


def joins(folder: Path) -> Target:
    """Tables with any keys, compared with a simple join."""

    def table(keys: list[bytes]) -> SequenceTable:
        count = len(keys)
        return SequenceTable(Keys(np.array(keys, "S8")), np.ones(count, np.uint32), np.array([0, count], np.int64))

    def run(data: bytes) -> None:
        parts = [part.split(b",") for part in data.split(b";")[:4]]
        lists = [[key[:8].rstrip(b"\0") for key in part] for part in parts]
        marked = [[key.startswith(b"*") for key in part] for part in lists]
        expected = []
        for index, key in enumerate(lists[0]):
            found = [partner(key, other, stars) for other, stars in zip(lists[1:], marked[1:], strict=True)]
            if None not in found:
                expected.append((index, *found))
        patterns = [np.array(part) if any(part) else None for part in marked]
        try:
            joined = join([table(part) for part in lists], patterns=patterns)
        except CntkIoError:
            assert not expected
            return
        assert list(zip(*(partners.tolist() for partners in joined.partners), strict=True)) == expected

    return run


def partner(key: bytes, others: list[bytes], stars: list[bool]) -> int | None:
    if key in others:
        return others.index(key)
    rest = key
    while b"/" in rest:
        rest = rest.partition(b"/")[2].rstrip(b"\0")
        for index, (other, is_pattern) in enumerate(zip(others, stars, strict=True)):
            if is_pattern and other == rest:
                return index
    return None


TARGETS: dict[str, Callable[[Path], Target]] = {
    target.__name__: target
    for target in (
        config, ctf, ctf_cache, svmlight, kaldi, mlf_cache, cbf, htk_header, htk_list, labels, state, tables,
        converters,
        joins,
    )
}  # fmt: skip
"""The targets by name."""

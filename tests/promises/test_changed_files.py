"""A file that changes under a source: an error, or the old content whole; and a state of other content is refused.

The tables have all formats and all ways to change a file, between two reads and before a state is loaded.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CheckpointError,
    CntkIoError,
    CorpusError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    Mixture,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
    write_cbf,
    write_kaldi,
)
from cntkio.formats import corpus as files_of_a_corpus
from cntkio.formats import htk
from cntkio.storage.text_input import InputFile

KEYS = range(24)
X = StreamDefs(x=StreamDef(field="x", shape=2))


class Case(NamedTuple):
    """A format: writes files in the working folder, in which all values are `value`; and makes their reader.

    Attributes:
        changing: A pattern of the files that contain the values.
    """

    write: Callable[[int], object]
    reader: Callable[[], Any]
    changing: str


def write_texts(value: int) -> None:
    for key in KEYS:
        Path(f"{key:02}.ctf").write_text(f"{key} |x {value} {value}\n")


def write_frames(value: int) -> None:
    htk.write_archive("a.ark", "a.scp", [(f"u{key}", np.full((1, 2), value)) for key in KEYS])


def write_many_frames(value: int) -> None:
    for key in KEYS:
        htk.write_features(f"{key}.mfc", np.full((1, 2), value))
    Path("a.scp").write_text("".join(f"u{key}={key}.mfc[0,0]\n" for key in KEYS))


def write_labels(value: int) -> None:
    write_frames(value)
    Path("states").write_text("zero\none\ntwo\n")
    label = ("zero", "one", "two")[value]
    Path("a.mlf").write_text("#!MLF!#\n" + "".join(f'"u{key}.lab"\n0 100000 {label}\n.\n' for key in KEYS))


def write_kaldi_archive(value: int) -> None:
    write_kaldi("a.ark", {"x": [np.full((1, 2), value, np.float32) for _ in KEYS]}, scp="a.scp")


def write_lines(value: int) -> None:
    Path("a.svm").write_text("".join(f"{value} 1:{value} 2:{value}\n" for _ in KEYS))


def write_binary(value: int, **options: Any) -> None:
    write_cbf("a.cbf", {"x": np.full((len(KEYS), 2), value, np.float32)}, chunk_size_in_bytes=16, **options)


def write_table(value: int) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"x": np.full(len(KEYS), value, np.float32)})
    parquet.write_table(table, "a.parquet", row_group_size=2)


def write_batches(value: int) -> None:
    pa, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    table = pa.table({"x": np.full(len(KEYS), value, np.float32)})
    with ipc.new_file("a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def features(**options: Any) -> HTKFeatureDeserializer:
    return HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp="a.scp", shape=2)), **options)


def labels() -> Any:
    streams = StreamDefs(x=StreamDef(mlf="a.mlf", shape=3))
    frames = HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp="a.scp", shape=2)))
    return [frames, HTKMLFDeserializer("states", streams, as_class_ids=True)]


def tables(name: str) -> Any:
    return pytest.importorskip("cntkio.arrow", exc_type=ModuleNotFoundError).ArrowDeserializer(name)


CASES = {
    "ctf": Case(
        lambda value: Path("a.ctf").write_text("".join(f"{key} |x {value} {value}\n" for key in KEYS)),
        lambda: CTFDeserializer("a.ctf", X, chunk_size_in_bytes=20),
        "a.ctf",
    ),
    "ctf, many files": Case(write_texts, lambda: CTFDeserializer("*.ctf", X), "*.ctf"),
    "cbf": Case(write_binary, lambda: CBFDeserializer("a.cbf"), "a.cbf"),
    "cbf, copied": Case(write_binary, lambda: CBFDeserializer("a.cbf", memory_map=False), "a.cbf"),
    "cbf, documented": Case(
        lambda value: write_binary(value, layout="documented"), lambda: CBFDeserializer("a.cbf"), "a.cbf"
    ),
    "htk": Case(write_frames, features, "a.ark"),
    "htk, copied": Case(write_frames, lambda: features(memory_map=False), "a.ark"),
    "htk, many files": Case(write_many_frames, features, "*.mfc"),
    "htk, many files, copied": Case(write_many_frames, lambda: features(memory_map=False), "*.mfc"),
    "mlf": Case(write_labels, labels, "a.mlf"),
    "kaldi, archive": Case(
        write_kaldi_archive, lambda: KaldiDeserializer("a.ark", stream="x", chunk_size_in_bytes=16), "a.ark"
    ),
    "kaldi, list": Case(
        write_kaldi_archive, lambda: KaldiDeserializer("a.scp", stream="x", chunk_size_in_bytes=16), "a.ark"
    ),
    "svmlight": Case(
        write_lines, lambda: SvmlightDeserializer("a.svm", zero_based=False, chunk_size_in_bytes=20), "a.svm"
    ),
    "parquet": Case(write_table, lambda: tables("a.parquet"), "a.parquet"),
    "arrow": Case(write_batches, lambda: tables("a.arrow"), "a.arrow"),
}


def overwrite(path: Path, new: Path) -> None:
    with path.open("r+b") as file:
        file.write(new.read_bytes())
        file.truncate()


def cut(path: Path, _: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path, new: Path) -> None:
    new.replace(path)


def delete(path: Path, _: Path) -> None:
    path.unlink()


def append(path: Path, new: Path) -> None:
    with path.open("ab") as file:
        file.write(new.read_bytes())


CHANGES = {change.__name__: change for change in (overwrite, cut, replace, delete, append)}
Change = Callable[[], None]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A case whose values are 1 in the working folder, and 2 in the folder `new`. Chunks are small."""
    monkeypatch.setattr(htk.corpus, "CHUNK_FRAMES", 2)
    monkeypatch.setattr(htk.lists, "SMALLEST_MAP", 8)
    monkeypatch.setattr(files_of_a_corpus, "MOST_OPEN", 2)
    case = CASES[request.param]
    for folder, value in ((tmp_path / "new", 2), (tmp_path, 1)):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        case.write(value)
    for path in tmp_path.glob(case.changing):
        os.utime(path, ns=(10**18, 10**18))  # the clock of a file system may stand still between two writes
    return case


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest, case: Case) -> Change:
    def all_files() -> None:
        for path in sorted(Path().glob(case.changing)):
            CHANGES[request.param](path, Path("new", path.name))

    return all_files


def source_of(case: Case) -> MinibatchSource:
    return MinibatchSource(case.reader(), randomize=False, max_sweeps=1, read_ahead_in_bytes=0)


def values_in(minibatch: Any) -> np.ndarray[Any, Any]:
    return np.asarray(minibatch["x" if "x" in minibatch else "features"].values)


def test_a_sweep_delivers_the_old_content_or_ends_with_an_error(case: Case, change: Change) -> None:
    with source_of(case) as source:
        whole = [np.unique(values_in(minibatch)).tolist() for minibatch in source.minibatches(1)]
    assert whole == [[1]] * len(whole)
    with source_of(case) as source:
        delivered = [values_in(source.next_minibatch(1))]
        change()
        try:
            delivered += map(values_in, source.minibatches(1))
        except CorpusError as error:
            assert "changed while in use" in str(error)
        except FileNotFoundError as error:
            assert not Path(error.filename).exists()
        else:
            assert len(delivered) == len(whole)
        assert all((values == 1).all() for values in delivered)


def test_a_state_of_other_content_is_refused(case: Case, change: Change) -> None:
    with source_of(case) as source:
        source.next_minibatch(1)
        state = source.state_dict()
    change()
    with contextlib.ExitStack() as stack:
        # A file that is cut or gone may be an error when it is opened.
        stack.enter_context(pytest.raises((CheckpointError, CntkIoError, OSError)))
        stack.enter_context(source_of(case)).load_state_dict(state)


def test_a_changed_byte_is_known_when_a_state_is_loaded(case: Case) -> None:
    with source_of(case) as source:
        expected = values_in(source.next_minibatch(1))
        state = source.state_dict()
    path = max(Path().glob(case.changing))
    content = path.read_bytes()
    other = Path("new", path.name).read_bytes()
    place = next(place for place in range(len(content) - 1, 0, -1) if content[place] != other[place])
    path.write_bytes(content[:place] + other[place : place + 1] + content[place + 1 :])
    with pytest.raises((CheckpointError, CntkIoError)), source_of(case) as source:
        source.load_state_dict(state)
    path.write_bytes(content)
    with source_of(case) as source:
        source.load_state_dict(state)
        assert (values_in(source.next_minibatch(1)) == expected).all()


def test_a_state_continues_with_a_copy_of_the_corpus(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with source_of(case) as source:
        source.next_minibatch(1)
        state = source.state_dict()
        expected = [values_in(minibatch).tolist() for minibatch in source.minibatches(1)]
    shutil.copytree(".", "copy", ignore=shutil.ignore_patterns("new"), copy_function=shutil.copyfile)
    monkeypatch.chdir("copy")
    earlier = {name: value for name, value in state.items() if name != "content"}  # of an earlier version
    for given in (state, earlier):
        with source_of(case) as source:
            source.load_state_dict(given)
            assert [values_in(minibatch).tolist() for minibatch in source.minibatches(1)] == expected


@pytest.mark.parametrize("mixed", [Mixture, SequenceMixture])
def test_a_state_of_a_mixture_covers_the_content_of_its_parts(
    mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b").mkdir()
    parts = {"a": CASES["ctf"].reader, "b": lambda: CTFDeserializer("b/a.ctf", X)}

    def opened() -> Any:
        return mixed({name: (MinibatchSource(make()), 1) for name, make in parts.items()})

    CASES["ctf"].write(1)
    shutil.copy("a.ctf", "b/a.ctf")
    with opened() as source:
        state = source.state_dict()
    earlier = {name: value for name, value in state.items() if name != "content"}
    with opened() as source:
        source.load_state_dict(state)
        source.load_state_dict(earlier)
    CASES["ctf"].write(2)
    with opened() as source, pytest.raises(CheckpointError, match="content"):
        source.load_state_dict(state)


def test_an_archive_that_is_cut_while_it_is_opened_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_kaldi_archive(1)

    def cut_and_refused(*_: object) -> None:
        os.truncate("a.ark", 20)
        raise ValueError("places outside the text")  # as the core says it

    monkeypatch.setattr(InputFile, "source", cut_and_refused)
    for name in ("a.ark", "a.scp"):
        with pytest.raises(CorpusError, match="changed while in use"):
            KaldiDeserializer(name).open()
        write_kaldi_archive(1)

"""Binary formats in remote stores: they read as on a disk, in few requests, and a store's faults are located errors."""

import random
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CorpusError,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
)
from cntkio.cli import main
from cntkio.convert import write_cbf
from cntkio.formats.htk import corpus as htk
from cntkio.formats.mlf import write_binary_mlf, write_mapping, write_mlf
from cntkio.storage import block_cache, open_input, stores
from support.range_server import RangeServer, Request, range_server

DirFileSystem = pytest.importorskip("fsspec.implementations.dirfs").DirFileSystem
fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

Files = dict[str, bytes]
NUM_SEQUENCES = 40


class Form(NamedTuple):
    """A format: its files by name; the deserializers for files in a place; the file with the data; a command's input.

    Attributes:
        most_requests: Most requests of an opening, and of the read of a chunk.
        reader: The section of a configuration that reads it from a place.
    """

    files: Callable[[Path], Files]
    read: Callable[..., Any]
    data: str
    command: str
    most_requests: tuple[int, int]
    reader: str


def numbers(lengths: list[int]) -> list[Any]:
    rows = np.random.default_rng(7)
    return [rows.integers(0, 1000, (length, 3)).astype(np.float32) for length in lengths]


LENGTHS = [1 + key % 4 for key in range(NUM_SEQUENCES)]


def written(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cbf_files(folder: Path) -> Files:
    values, half = numbers(LENGTHS), NUM_SEQUENCES // 2
    for name, part in (("a.cbf", values[:half]), ("b.cbf", values[half:])):
        write_cbf(folder / name, {"x": part}, chunk_size_in_bytes=200)
    return written(folder)


def documented_files(folder: Path) -> Files:
    write_cbf(folder / "a.cbf", {"x": numbers([1] * NUM_SEQUENCES)}, chunk_size_in_bytes=200, layout="documented")
    return written(folder)


def write_ark(path: Path, keys: range) -> list[int]:
    """Write an archive, and return the offset of each object."""
    values, content, offsets = numbers(LENGTHS), b"", []
    for key in keys:
        content += f"u{key} ".encode()
        offsets.append(len(content))
        content += b"\0BFM \4" + struct.pack("<iBi", len(values[key]), 4, 3) + values[key].tobytes()
    path.write_bytes(content)
    return offsets


def ark_files(folder: Path) -> Files:
    write_ark(folder / "a.ark", range(NUM_SEQUENCES))
    return written(folder)


def scp_files(folder: Path) -> Files:
    """Write two archives, and a list of their objects in another order."""
    lines = []
    for number, name in enumerate(("a.ark", "b.ark")):
        keys = range(number, NUM_SEQUENCES, 2)
        offsets = write_ark(folder / name, keys)
        lines += [f"u{key} {name}:{offset}\n" for key, offset in zip(keys, offsets, strict=True)]
    random.Random(3).shuffle(lines)
    (folder / "a.scp").write_text("".join(lines))
    return written(folder)


def htk_files(folder: Path) -> Files:
    """Write an archive of frames and whole files, and a list of both."""
    frames, ends, lines = np.concatenate(numbers(LENGTHS)).astype(">f4"), np.cumsum(LENGTHS).tolist(), []
    for key, end in enumerate(ends):
        first, place = end - LENGTHS[key], f"a.chunk[{end - LENGTHS[key]},{end - 1}]"
        if key >= NUM_SEQUENCES // 2:
            place = f"{key}.mfc"
            (folder / place).write_bytes(struct.pack(">iihh", end - first, 100000, 12, 9) + frames[first:end].tobytes())
        lines.append(f"u{key}={place}\n")
    (folder / "a.chunk").write_bytes(struct.pack(">iihh", len(frames), 100000, 12, 9) + frames.tobytes())
    (folder / "a.scp").write_text("".join(lines))
    return written(folder)


def mlf_files(folder: Path) -> Files:
    """Write features, and their labels in both forms."""
    htk_files(folder)
    utterances = [(f"u{key}", np.arange(length) % 3) for key, length in enumerate(LENGTHS)]
    write_mlf(folder / "a.mlf", utterances, ["sil", "aa", "bb"])
    write_binary_mlf(folder / "a.bmlf", utterances)
    write_mapping(folder / "states", ["sil", "aa", "bb"])
    return written(folder)


def read_htk(place: Any, **options: Any) -> HTKFeatureDeserializer:
    return HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=f"{place}a.scp", shape=3)), **options)


def read_mlf(place: Any, **options: Any) -> list[Any]:
    mlf = StreamDefs(l=StreamDef(mlf=f"{place}a.mlf", shape=3))
    return [read_htk(place, **options), HTKMLFDeserializer(f"{place}states", mlf, **options)]


def read_bmlf(place: Any, **options: Any) -> list[Any]:
    mlf = StreamDefs(l=StreamDef(mlf=f"{place}a.bmlf", shape=3))
    return [read_htk(place, **options), HTKMLFBinaryDeserializer(mlf, **options)]


def read_kaldi(name: str) -> Callable[..., Any]:
    return lambda place, **options: KaldiDeserializer(f"{place}{name}", chunk_size_in_bytes=300, **options)


HTK_READER = """readerType = HTKMLFReader ; randomize = none ; frameMode = false
    f = [ scpFile = "{place}a.scp" ; dim = 3 ]"""
FORMS = {
    "cbf": Form(
        cbf_files,
        lambda place, **options: CBFDeserializer([f"{place}a.cbf", f"{place}b.cbf"], **options),
        "b.cbf",
        "a.cbf",
        (2 * 5, 2),
        'readerType = CNTKBinaryReader ; file = "{place}a.cbf;{place}b.cbf" ; keepDataInMemory = true',
    ),
    "documented cbf": Form(
        documented_files,
        lambda place, **options: CBFDeserializer(f"{place}a.cbf", **options),
        "a.cbf",
        "a.cbf",
        (4, 2),
        'readerType = CNTKBinaryReader ; file = "{place}a.cbf"',
    ),
    # Two requests for a list, and for each file its facts and its first bytes.
    "ark": Form(ark_files, read_kaldi("a.ark"), "a.ark", "a.ark", (6, 2), ""),
    "scp": Form(scp_files, read_kaldi("a.scp"), "a.ark", "a.scp", (12, 4), ""),
    "htk": Form(htk_files, read_htk, "39.mfc", "a.scp", (8 + 2 * 20, 20), HTK_READER),
    "mlf": Form(
        mlf_files,
        read_mlf,
        "39.mfc",
        "a.mlf",
        (14 + 2 * 20, 20),
        HTK_READER + 'l = [ mlfFile = "{place}a.mlf" ; labelMappingFile = "{place}states" ; labelDim = 3 ]',
    ),
    "bmlf": Form(mlf_files, read_bmlf, "39.mfc", "a.bmlf", (14 + 2 * 20, 20), ""),
}
PLACES = ("http", "cached http", "memory", "file", "store")


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user cache"))
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.001)
    # The first bytes of an object stay in memory, so that a small file would be read with one request.
    monkeypatch.setattr(open_input, "HEAD", 32)
    monkeypatch.setattr(open_input, "MOST_KEPT", 20)
    monkeypatch.setattr(htk, "CHUNK_FRAMES", 20)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as served:
        yield served


def placed(place: str, files: Files, folder: Path, server: RangeServer) -> tuple[str, Remote | None]:
    """Put files into a place; return how names begin there, and the options to read them."""
    if "http" in place:
        server.files |= {f"corpus/{name}": content for name, content in files.items()}
        return f"{server.url}/corpus/", Remote(cache=folder / "cache") if "cached" in place else None
    if place == "file":
        return (folder / "corpus").as_uri() + "/", None
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/formats/{folder.name}/{name}": content for name, content in files.items()})
    if place == "memory":
        return f"memory://formats/{folder.name}/", None
    # Paths have no scheme, and the paths of a list begin in the store.
    return "", Remote(store=DirFileSystem(f"/formats/{folder.name}", memory))


@pytest.fixture
def local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the files on the disk, in which the relative paths of lists begin."""
    (tmp_path / "corpus").mkdir()
    monkeypatch.chdir(tmp_path / "corpus")
    return tmp_path


def made(form: Form, folder: Path) -> Files:
    return form.files(folder / "corpus")


def everything(deserializers: Any, **options: Any) -> Any:
    """Return the minibatches of two sweeps, and a state after the first."""
    with MinibatchSource(deserializers, max_sweeps=2, **options) as source:
        read = [source.next_minibatch(5)]
        state = source.state_dict()
        read += source.minibatches(17)
    shown = [
        (minibatch.keys_of_sequences.tolist(), {name: plain(data) for name, data in minibatch.items()})
        for minibatch in read
        if minibatch
    ]
    return shown, {name: state[name] for name in ("timeline", "data")}


def plain(data: Any) -> Any:
    arrays = (getattr(data, name, None) for name in ("values", "offsets", "indices", "indptr"))
    return [None if array is None else (array.tolist(), str(array.dtype)) for array in arrays]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_a_format_reads_the_same_from_every_store(
    form: str, place: str, local_files: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = made(FORMS[form], local_files)
    monkeypatch.setattr(stores, "PART", 300)
    monkeypatch.setattr(block_cache, "BLOCK", 500)
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", 125)
    expected = everything(FORMS[form].read(f"{local_files}/corpus/"))
    name, remote = placed(place, files, local_files, server)
    assert everything(FORMS[form].read(name, remote=remote)) == expected
    if remote is not None and remote.cache is not None:
        assert everything(FORMS[form].read(name, remote=remote)) == expected


# --------------------------------------------------------------------------------------------------------------- faults


def on_server(form: Form, folder: Path, server: RangeServer, timeout: float = 60) -> Any:
    name, _ = placed("http", made(form, folder), folder, server)
    return form.read(name, remote=Remote(num_retries=1, timeout_in_seconds=timeout))


def replaced(server: RangeServer, name: str) -> None:
    server.files[name] = server.files[name][:-1] + b"?"


def deleted(server: RangeServer, name: str) -> None:
    del server.files[name]


def answering(fault: str) -> Callable[[RangeServer, str], None]:
    def begin(server: RangeServer, name: str) -> None:
        server.fault = lambda request: fault

    return begin


FAULTS: dict[str, tuple[Callable[[RangeServer, str], None], Any, str]] = {
    "replaced": (replaced, CorpusError, "{name}: changed while it was read; open it again"),
    "deleted": (deleted, (CorpusError, OSError), "{name}: changed while it was read: it was deleted|No such .*{name}"),
    "500": (answering("500"), OSError, r"Cannot read .*500.*corpus/"),
    "short": (answering("short"), OSError, r"Cannot read bytes \d+ to \d+ .*corpus/"),
    "more": (answering("more"), OSError, r"Cannot read bytes \d+ to \d+ .*corpus/"),
    "shifted": (answering("shifted"), OSError, r"Cannot read bytes \d+ to \d+ .*corpus/"),
    "whole": (answering("whole"), OSError, r"ignores ranges.*corpus/"),
    "hang": (answering("hang"), TimeoutError, r"Cannot read .* \(no answer in 0\.2 s\).*corpus/"),
    "403": (answering("403"), PermissionError, r"The store refuses .*corpus/"),
}


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        pytest.param(form, fault, marks=[] if (number + place) % 2 else pytest.mark.thorough)
        for number, form in enumerate(FORMS)
        for place, fault in enumerate(FAULTS)
    ],
)
def test_a_fault_of_a_store_is_an_error_that_names_the_object(
    form: str, fault: str, local_files: Path, server: RangeServer
) -> None:
    begin, kind, message = FAULTS[fault]
    corpus = on_server(FORMS[form], local_files, server, 0.2 if kind is TimeoutError else 60)
    with MinibatchSource(corpus, max_sweeps=1, randomize=False, read_ahead_in_bytes=0) as source:
        assert source.next_minibatch(5)
        begin(server, f"corpus/{FORMS[form].data}")
        with pytest.raises(kind, match=message.format(name=re.escape(FORMS[form].data))):
            list(source.minibatches(5))


@pytest.mark.parametrize("form", FORMS)
def test_faults_that_pass_change_no_value(form: str, local_files: Path, server: RangeServer) -> None:
    corpus, choose, failed = on_server(FORMS[form], local_files, server), random.Random(form), set[Any]()

    def fault(request: Request) -> str:
        key = request.method, request.path, request.begin
        if key in failed or choose.random() < 0.5:
            return ""
        failed.add(key)
        return choose.choice(("500", "503", "short", "drop"))

    server.fault = fault
    assert everything(corpus) == everything(FORMS[form].read(f"{local_files}/corpus/"))
    assert failed


@pytest.mark.parametrize("form", FORMS)
def test_opening_and_reading_take_few_requests(form: str, local_files: Path, server: RangeServer) -> None:
    corpus = on_server(FORMS[form], local_files, server)
    opening, of_chunk = FORMS[form].most_requests
    with MinibatchSource(corpus, max_sweeps=1, read_ahead_in_bytes=0) as source:
        assert len(server.requests) <= opening, [(one.method, one.path, one.begin) for one in server.requests]
        server.requests.clear()
        list(source.minibatches(10))
        assert len(server.requests) <= of_chunk * source.num_chunks


@pytest.mark.parametrize("verb", ["inspect", "head", "check"])
@pytest.mark.parametrize("form", FORMS)
def test_the_command_reads_a_format_from_a_store(
    form: str, verb: str, local_files: Path, server: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    files, command = made(FORMS[form], local_files), FORMS[form].command
    (name, _), local = placed("http", files, local_files, server), f"{local_files}/corpus/"
    outputs = []
    for place in (f"{name}{command}", f"{local}{command}"):
        assert main([verb, place]) == 0, capsys.readouterr().err
        outputs.append(capsys.readouterr().out.replace(name, local))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("form", [name for name in FORMS if "mlf" not in name])
def test_the_command_converts_a_format_from_a_store(form: str, local_files: Path, server: RangeServer) -> None:
    files, command = made(FORMS[form], local_files), FORMS[form].command
    name, _ = placed("http", files, local_files, server)
    texts = []
    for number, place in enumerate((f"{name}{command}", f"{local_files}/corpus/{command}")):
        assert main(["convert", "--renumber", place, str(local_files / f"{number}.ctf")]) == 0
        texts.append((local_files / f"{number}.ctf").read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.reader])
def test_a_configuration_reads_a_format_from_a_store(form: str, local_files: Path, server: RangeServer) -> None:
    files = made(FORMS[form], local_files)
    name, _ = placed("http", files, local_files, server)
    read = []
    for place in (name, f"{local_files}/corpus/"):
        reader = FORMS[form].reader.format(place=place)
        (local_files / "a.cntk").write_text(f"train = [ reader = [ {reader} ; remote = [ numRetries = 1 ] ] ]")
        with MinibatchSource.from_config(local_files / "a.cntk") as source:
            keys = [source.next_minibatch(7) for _ in range(9)]
            read.append([(one.keys_of_sequences.tolist(), *map(plain, one.values())) for one in keys])
    assert read[0] == read[1]


@pytest.mark.parametrize("place", ["http", "memory", "file"])
def test_a_configuration_may_be_in_a_store(
    place: str, local_files: Path, server: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    files = made(FORMS["cbf"], local_files)
    own = f'train = [ reader = [ readerType = CNTKBinaryReader ; file = "{local_files}/corpus/a.cbf" ] ]'.encode()
    (local_files / "corpus" / "own.cntk").write_bytes(own)
    files |= {"own.cntk": own, "a.cntk": b"include=own.cntk\n"}
    (local_files / "corpus" / "a.cntk").write_bytes(files["a.cntk"])
    name, _ = placed(place, files, local_files, server)
    outputs = []
    for path in (f"{name}a.cntk", "a.cntk"):
        assert main(["head", path]) == 0, capsys.readouterr().err
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert main(["head", f"{name}b.cntk"]) == 2
    assert "No such" in capsys.readouterr().err


def test_a_finding_of_check_names_a_list_by_its_url(
    local_files: Path, server: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    files = mlf_files(local_files / "corpus")
    files["b.scp"] = b"".join(files["a.scp"].splitlines(keepends=True)[:-1])
    name, _ = placed("http", files, local_files, server)
    assert main(["check", f"{name}b.scp", "--labels", f"{name}a.mlf"]) == 1
    assert f"missing-key: {name}b.scp has no sequence with this key" in capsys.readouterr().out


def test_paths_of_lists_and_prefixes_may_be_urls(local_files: Path, server: RangeServer) -> None:
    files, local = htk_files(local_files / "corpus"), f"{local_files}/corpus/"
    name, _ = placed("http", files, local_files, server)
    lines = files["a.scp"].decode()
    (local_files / "urls.scp").write_text(lines.replace("=", f"={name}"))
    # The first utterances are on the disk.
    (local_files / "both.scp").write_text(
        lines.replace("=a", f"={local}a").replace("=2", f"={name}2").replace("=3", f"={name}3")
    )
    server.files["corpus/lists/a.scp"] = lines.replace("=", "=../").encode()
    expected = everything(read_htk(local))[0]
    for scp, prefix in (
        (str(local_files / "urls.scp"), ""),
        (str(local_files / "both.scp"), ""),
        (f"{local}a.scp", name.rstrip("/")),
        (f"{name}lists/a.scp", ""),
    ):
        corpus = HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=scp, shape=3)), prefix=prefix)
        assert everything(corpus)[0] == expected, scp


# ------------------------------------------------------------------------------------------------------- single formats


def test_a_large_binary_file_opens_with_three_requests(
    tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_input, "HEAD", 64 << 10)
    write_cbf(tmp_path / "a.cbf", {"x": np.arange(120_000, dtype=np.float32).reshape(-1, 8)}, chunk_size_in_bytes=1000)
    server.files["a.cbf"] = (tmp_path / "a.cbf").read_bytes()
    assert len(server.files["a.cbf"]) > 4 * 64 << 10
    with MinibatchSource(CBFDeserializer(f"{server.url}/a.cbf"), max_sweeps=1) as source:
        # Its facts, its first bytes and its last bytes.
        assert len(server.requests) == 3
        state = source.state_dict()["data"]
    with MinibatchSource(CBFDeserializer(tmp_path / "a.cbf"), max_sweeps=1) as source:
        assert state == source.state_dict()["data"]


def test_a_wrong_list_of_lengths_in_a_store_is_a_located_error(tmp_path: Path, server: RangeServer) -> None:
    write_cbf(tmp_path / "a.cbf", {"x": np.eye(4, dtype=np.float32)})
    content = bytearray((tmp_path / "a.cbf").read_bytes())
    content[16:20] = (7).to_bytes(4, "little")
    server.files["a.cbf"] = bytes(content)
    with (
        MinibatchSource(CBFDeserializer(f"{server.url}/a.cbf"), randomize=False) as source,
        pytest.raises(FormatError, match=r"a\.cbf, byte 16, sequence 1: the length list says 7 samples"),
    ):
        source.next_minibatch(4)

"""Manifests: one object in place of a request for each file, and no change unnoticed."""

import gzip
import json
import pickle
import random
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CntkIoError,
    CorpusError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
)
from cntkio.cli import main
from cntkio.convert import write_cbf
from cntkio.formats.mlf import write_binary_mlf, write_mapping, write_mlf
from cntkio.storage import index_cache, manifest
from support.damaged_caches import HOSTILE, mutated, paths_in, replaced
from support.range_server import RangeServer, range_server
from support.rounds import rounds, step

COUNT = rounds(100)
X = StreamDefs(x=StreamDef(field="x", shape=2))


def text_of(number: int) -> bytes:
    return b"".join(b"%d |x %d 1\n" % (7 * number + line, line) for line in range(5))


def ctf(names: Any, **options: Any) -> CTFDeserializer:
    return CTFDeserializer(names, X, **options)


def svmlight(names: Any, **options: Any) -> Any:
    return SvmlightDeserializer(names, **options)


def tables(names: Any, **options: Any) -> Any:
    arrow = pytest.importorskip("cntkio.arrow")
    return arrow.ArrowDeserializer(names, **options)


def cbf(names: Any, **options: Any) -> Any:
    options.pop("cache_index", None)
    return CBFDeserializer(names, **options)


def made(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "a"))
        return Path(folder, "a").read_bytes()


def cbf_of(number: int, lengths: Sequence[int] = (1, 2, 3), **options: Any) -> bytes:
    rows = [np.full((length, 2), number, np.float32) for length in lengths]
    return made(lambda path: write_cbf(path, {"x": rows}, chunk_size_in_bytes=20, **options))


def parquet_of(number: int) -> bytes:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    out = pa.BufferOutputStream()
    rows = range(5 * number, 5 * number + 5)
    parquet.write_table(pa.table({"key": rows, "x": [[float(row)] * 2 for row in rows]}), out, row_group_size=2)
    return bytes(out.getvalue())


KINDS: dict[str, tuple[Callable[..., Any], Callable[[int], bytes]]] = {
    "ctf": (ctf, text_of),
    "ctf.gz": (ctf, lambda number: gzip.compress(text_of(number))),
    "svm": (svmlight, lambda number: b"1 1:%d 3:2\n0 2:1\n" % number),
    "parquet": (tables, parquet_of),
    "cbf": (cbf, cbf_of),
    "documented.cbf": (cbf, lambda number: cbf_of(number, [1] * 3, layout="documented")),
}


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as served:
        yield served


def serve(server: RangeServer, kind: str, count: int) -> str:
    """Serve files of a kind, write their manifest, and return the pattern of their names."""
    server.files |= {f"a-{number:03}.{kind}": KINDS[kind][1](number) for number in range(count)}
    pattern = f"{server.url}/a-{{000..{count - 1:03}}}.{kind}"
    assert main(["index", "-q", "--manifest", f"{server.url}/all.manifest", pattern]) == 0
    return pattern


def with_manifest(server: RangeServer, pattern: str, kind: str, **options: Any) -> Any:
    remote = Remote(manifest=f"{server.url}/all.manifest", num_retries=0)
    return KINDS[kind][0](pattern, **{"cache_index": True, "remote": remote, **options})


def rows_of(deserializer: Any) -> list[Any]:
    with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
        return [
            (one.keys_of_sequences.tolist(), data.values.tolist())
            for one in source.minibatches(64)
            for data in one.values()
        ]


@pytest.mark.parametrize("machine", ["the same", "another"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_objects_open_with_five_requests(
    server: RangeServer, kind: str, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = COUNT if (kind, machine) == ("ctf", "another") else 6
    pattern = serve(server, kind, count)
    plain = rows_of(KINDS[kind][0](pattern))
    if machine == "another":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    server.requests.clear()
    with MinibatchSource(with_manifest(server, pattern, kind), randomize=False, max_sweeps=1):
        assert len(server.requests) <= 5
    assert rows_of(with_manifest(server, pattern, kind)) == plain


def test_many_objects_with_an_index_open_with_one_request_each(server: RangeServer) -> None:
    server.files |= {f"a-{number:03}.ctf": text_of(number) for number in range(COUNT)}
    names = [f"{server.url}/a-{number:03}.ctf" for number in range(COUNT)]
    for _ in range(2):
        server.requests.clear()
        with MinibatchSource(ctf(names, cache_index=True), max_sweeps=1):
            num_requests = len(server.requests)
    assert num_requests == COUNT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["same size", "longer", "deleted"])
def test_a_file_that_is_not_as_in_the_manifest_is_an_error(server: RangeServer, kind: str, change: str) -> None:
    pattern = serve(server, kind, 3)
    name = f"a-001.{kind}"
    content = server.files.pop(name)
    if change != "deleted":
        middle = len(content) // 2
        other = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        server.files[name] = other if change == "same size" else content + content
    source = MinibatchSource(with_manifest(server, pattern, kind), randomize=False, max_sweeps=1)
    with source, pytest.raises((CorpusError, FileNotFoundError), match=name):
        for _ in source.minibatches(2):
            pass


def test_a_file_that_the_manifest_lacks_is_read_without_it(server: RangeServer) -> None:
    pattern = serve(server, "ctf", 3)
    server.files["a-003.ctf"] = text_of(3)
    names = [pattern, f"{server.url}/a-003.ctf"]
    assert rows_of(with_manifest(server, names, "ctf")) == rows_of(ctf(names))


def test_other_options_make_their_own_index(server: RangeServer) -> None:
    pattern = serve(server, "ctf", 3)
    for options in ({"chunk_size_in_bytes": 20}, {"skip_sequence_ids": True}, {"cache_index": False}):
        assert rows_of(with_manifest(server, pattern, "ctf", **options)) == rows_of(
            ctf(pattern, **{**options, "cache_index": False})
        )


def test_a_damaged_manifest_is_not_used(server: RangeServer) -> None:
    pattern = serve(server, "ctf", 3)
    plain, whole, chance = rows_of(ctf(pattern)), server.files["all.manifest"], random.Random(1)
    for _ in range(rounds(60)):
        server.files["all.manifest"] = mutated(whole, chance)
        assert rows_of(with_manifest(server, pattern, "ctf")) == plain


def test_a_hostile_manifest_raises_no_error_but_a_change(server: RangeServer) -> None:
    pattern = serve(server, "ctf", 2)
    plain, whole = rows_of(ctf(pattern)), server.files["all.manifest"]
    size, _ = struct.unpack_from("<QQ", whole, 18)
    table = json.loads(whole[34 : 34 + size])
    for place in list(paths_in(table))[:: step(2)]:
        for value in HOSTILE[:: step(4)]:
            text = json.dumps(replaced(json.loads(json.dumps(table)), place, value)).encode()
            sums = struct.pack("<QQ", len(text), index_cache.sum_of(text))
            server.files["all.manifest"] = whole[:18] + sums + text + whole[34 + size :]
            with suppress(CntkIoError):
                assert rows_of(with_manifest(server, pattern, "ctf")) == plain


def test_a_missing_manifest_is_an_error(server: RangeServer) -> None:
    server.files["a.ctf"] = text_of(0)
    with pytest.raises(FileNotFoundError, match=r"all\.manifest"):
        with_manifest(server, f"{server.url}/a.ctf", "ctf").open()


def test_large_manifests_are_read_in_parts(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pattern = serve(server, "ctf", 3)
    plain = rows_of(ctf(pattern))
    size, _ = struct.unpack_from("<QQ", server.files["all.manifest"], 18)
    monkeypatch.setattr(manifest, "MOST_KEPT", 34 + size + 700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    server.requests.clear()
    assert rows_of(with_manifest(server, pattern, "ctf")) == plain
    begins = [one.begin for one in server.requests if one.path == "/all.manifest" and one.begin is not None]
    # The table and the first cache at once, and then each other cache, whichever file is opened first.
    assert begins[0] == 0
    assert len(begins) == len(set(begins)) > 1


def test_copies_of_the_options_read_the_manifest_too(server: RangeServer) -> None:
    pattern = serve(server, "ctf", 2)
    deserializer = with_manifest(server, pattern, "ctf")
    assert rows_of(pickle.loads(pickle.dumps(deserializer))) == rows_of(deserializer)


def test_a_manifest_has_no_names_and_repr_no_manifest(server: RangeServer) -> None:
    serve(server, "ctf", 2)
    assert b"a-00" not in server.files["all.manifest"]
    assert "secret" not in repr(Remote(manifest="https://host/a?signature=secret"))


# ------------------------------------------------------------------------------------- lists and labels of HTK


def serve_utterances(server: RangeServer, count: int, labels: str) -> None:
    """Serve a file of features and a file of labels for each utterance, a list, and the manifest of all."""
    names = ["sil", "aa"]
    for number in range(count):
        frames = np.full((1 + number % 3, 2), number, ">f4")
        header = struct.pack(">iihh", len(frames), 100000, 8, 9)
        utterance = [(f"u{number}", np.arange(len(frames)) % 2)]
        server.files[f"{number:03}.mfc"] = header + frames.tobytes()
        server.files[f"{number:03}.mlf"] = made(lambda path, one=utterance: write_mlf(path, one, names))  # type: ignore[misc]
        server.files[f"{number:03}.bmlf"] = made(lambda path, one=utterance: write_binary_mlf(path, one))  # type: ignore[misc]
    server.files["a.scp"] = "".join(f"u{number}={number:03}.mfc\n" for number in range(count)).encode()
    server.files["names"] = made(lambda path: write_mapping(path, names))
    corpora = [f"{server.url}/a.scp", *([f"{server.url}/{{000..{count - 1:03}}}.{labels}"] if labels else [])]
    mapping = ["--mapping", f"{server.url}/names"] if labels else []
    assert main(["index", "-q", "--manifest", f"{server.url}/all.manifest", *mapping, *corpora]) == 0


def utterances(server: RangeServer, count: int, labels: str, remote: Remote | None = None) -> list[Any]:
    stream = {"l": StreamDef(mlf=f"{server.url}/{{000..{count - 1:03}}}.{labels}", shape=2)}
    features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=f"{server.url}/a.scp", shape=2)), remote=remote)
    if labels == "mlf":
        return [features, HTKMLFDeserializer(f"{server.url}/names", StreamDefs(stream), remote=remote)]
    return [features, *([HTKMLFBinaryDeserializer(StreamDefs(stream), remote=remote)] if labels else [])]


def from_manifest(server: RangeServer) -> Remote:
    return Remote(manifest=f"{server.url}/all.manifest", num_retries=0)


@pytest.mark.parametrize("labels", ["", "mlf", "bmlf"])
def test_many_files_of_features_and_labels_open_with_five_requests(server: RangeServer, labels: str) -> None:
    count = rounds(60) if labels else 6
    serve_utterances(server, count, labels)
    plain = rows_of(utterances(server, count, labels))
    server.requests.clear()
    with MinibatchSource(utterances(server, count, labels, from_manifest(server)), max_sweeps=1):
        assert len(server.requests) <= 5
    assert rows_of(utterances(server, count, labels, from_manifest(server))) == plain


@pytest.mark.parametrize("name", ["a.scp", "001.mfc", "001.mlf", "001.bmlf", "names"])
@pytest.mark.parametrize("change", ["same size", "longer", "deleted"])
def test_a_list_or_label_that_has_changed_is_an_error(server: RangeServer, name: str, change: str) -> None:
    labels = "bmlf" if name.endswith("bmlf") else "mlf"
    serve_utterances(server, 3, labels)
    content = server.files.pop(name)
    if change != "deleted":
        server.files[name] = content[:-1] + b"?" if change == "same size" else content + content
    corpus = utterances(server, 3, labels, from_manifest(server))
    with MinibatchSource(corpus, randomize=False, max_sweeps=1, read_ahead_in_bytes=0) as source:
        for _ in range(2):
            with pytest.raises((CorpusError, FileNotFoundError), match=name):
                source.next_minibatch(2)


def test_bytes_that_are_damaged_in_a_manifest_are_requested(server: RangeServer) -> None:
    serve_utterances(server, 3, "mlf")
    plain, whole, chance = rows_of(utterances(server, 3, "mlf")), server.files["all.manifest"], random.Random(2)
    for _ in range(rounds(30)):
        server.files["all.manifest"] = mutated(whole, chance)
        assert rows_of(utterances(server, 3, "mlf", from_manifest(server))) == plain


def test_manifests_of_local_files_and_archives_are_refused(
    server: RangeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.ctf").write_bytes(text_of(0))
    target = f"{server.url}/all.manifest"
    assert main(["index", "--manifest", target, str(tmp_path / "a.ctf")]) == 2
    assert "a manifest is for files in a remote store" in capsys.readouterr().err
    assert main(["convert", "-q", str(tmp_path / "a.ctf"), str(tmp_path / "a.cbf")]) == 0
    assert main(["index", "--manifest", target, str(tmp_path / "a.cbf")]) == 2
    assert "a manifest is for files in a remote store" in capsys.readouterr().err
    server.files["a.ark"] = b"u1 \0BFV \4\1\0\0\0\0\0\0\0"
    assert main(["index", "--manifest", target, f"{server.url}/a.ark"]) == 2
    assert "applies only to texts, tables, binary corpora, and lists and labels" in capsys.readouterr().err
    server.has_versions, server.files["a.ctf"] = False, text_of(0)
    assert main(["index", "--manifest", target, f"{server.url}/a.ctf"]) == 2
    assert "neither versions nor times" in capsys.readouterr().err
    assert "all.manifest" not in server.files

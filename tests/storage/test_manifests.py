"""Manifests: one object in place of a request for each file, and no change unnoticed."""

import gzip
import json
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cntkio import (
    CntkIoError,
    CorpusError,
    CTFDeserializer,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
)
from cntkio.cli import main
from cntkio.storage import index_cache, manifest
from support.damaged_caches import HOSTILE, mutated, paths_in, replaced
from support.range_server import RangeServer, range_server
from support.rounds import rounds, step

COUNT = rounds(200)
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


def test_manifests_of_local_files_and_binary_corpora_are_refused(
    server: RangeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.ctf").write_bytes(text_of(0))
    target = f"{server.url}/all.manifest"
    assert main(["index", "--manifest", target, str(tmp_path / "a.ctf")]) == 2
    assert "a manifest is for files in a remote store" in capsys.readouterr().err
    assert main(["convert", "-q", str(tmp_path / "a.ctf"), str(tmp_path / "a.cbf")]) == 0
    assert main(["index", "--manifest", target, str(tmp_path / "a.cbf")]) == 2
    assert "applies only to texts and tables" in capsys.readouterr().err
    server.has_versions, server.files["a.ctf"] = False, text_of(0)
    assert main(["index", "--manifest", target, f"{server.url}/a.ctf"]) == 2
    assert "neither versions nor times" in capsys.readouterr().err
    assert "all.manifest" not in server.files

"""Every verb reads a corpus wherever it is: one file, lists, patterns, compressed files, remote stores."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CTFDeserializer, StreamDef, StreamDefs, infer_streams, read_ctf
from cntkio.cli import main
from cntkio.convert import convert_file
from cntkio.formats.ctf import corpus
from support.range_server import range_server
from support.whereabouts import KINDS, PACKINGS, Kind, Whereabouts

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

TEXTS = [
    b"".join(b"%d |x %d 1 |y %d:1 |# word-%d\n" % (key, key, key % 3, key % 3) for key in keys)
    for keys in (range(30), range(30, 50))
]
STREAMS = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=3, is_sparse=True))
PLACES = [kind for kind in KINDS if not kind.is_cached]
SHAPES = ("one", "list", "pattern")


def places_and_shapes() -> Iterator[Any]:
    """Yield all pairs; `make test` takes one shape of each place, and each shape with each store and each packing."""
    for number, kind in enumerate(PLACES):
        for place, shape in enumerate(SHAPES):
            is_chosen = (number + number // len(PACKINGS)) % len(SHAPES) == place
            yield pytest.param(kind, shape, id=f"{kind}-{shape}", marks=[] if is_chosen else pytest.mark.thorough)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whereabouts]:
    with range_server() as served:
        yield Whereabouts(tmp_path_factory.mktemp("places"), served, random.Random(0))


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(corpus, "LEAST_CACHED", 0)
    monkeypatch.chdir(tmp_path)


def named(where: Whereabouts, kind: Kind, shape: str, name: str) -> tuple[str, list[str]]:
    """Write the corpus to a place, and return its name for the command, and the names of its files."""
    if shape == "one":
        (path,) = where.put(kind, f"{name}-one", [b"".join(TEXTS)])
        return path, [path]
    files = where.put(kind, f"{name}-{shape}", TEXTS)
    if shape == "list":
        return ";".join(files), files
    head = files[0].partition("-0.ctf")[0]
    endings = [file.removeprefix(head) for file in files]
    return (f"{head}-*" if kind.store != "http" else f"{head}{{{','.join(endings)}}}"), files


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    status = main([*arguments])
    out, err = capsys.readouterr()
    assert (status, err) == (0, ""), arguments
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(("kind", "shape"), list(places_and_shapes()))
def test_every_verb_reads_every_place(
    kind: Kind, shape: str, where: Whereabouts, capsys: pytest.CaptureFixture[str]
) -> None:
    name, files = named(where, kind, shape, "verbs")
    options = ["--json", "--quiet", name]
    (facts,) = printed(capsys, "inspect", *options)
    assert (facts["sequences"], facts["errors"], facts.get("files", 1)) == (50, {}, len(files))
    assert [stream["dim"] for stream in facts["streams"]] == [2, 3]
    (first,) = printed(capsys, "head", "-n", "50", *options)
    assert [sequence["key"] for sequence in first["sequences"]] == list(range(50))
    assert first["sequences"][7]["streams"] == {"x": [[7, 1]], "y": [[[1, 1]]]}
    assert printed(capsys, "inspect", *options)[0]["sequences"] == 50
    (report,) = printed(capsys, "check", "--ignore", "constant-values", *options)  # the second value of `x`
    assert (report["findings"], report["sequences"]) == ([], 50)
    assert printed(capsys, "plan", *options)
    (speed,) = printed(capsys, "bench", "--randomize", "--sweeps", "2", *options)
    assert speed["sequences"] == 100
    (index,) = printed(capsys, "index", *options)
    assert (index["sequences"], index["cache"].endswith(".index"), index["size"] > 0) == (50, True, True)
    assert index["cache"].startswith(files[0])
    printed(capsys, "convert", "--quiet", name, "copy.ctf")
    copy = read_ctf("copy.ctf", STREAMS)
    assert copy["x"].values.tolist() == [[key, 1] for key in range(50)]
    if len(files) == 1:
        words = printed(capsys, "vocab", *options)[0]["y"]["words"]
        assert words == {str(index): f"word-{index}" for index in range(3)}


@pytest.mark.parametrize(("kind", "shape"), list(places_and_shapes()))
def test_every_function_reads_every_place(kind: Kind, shape: str, where: Whereabouts) -> None:
    text, files = named(where, kind, shape, "functions")
    name: Any = files if shape == "list" else text
    assert infer_streams(name) == STREAMS
    read = read_ctf(name)
    assert read["x"].values[:, 0].tolist() == list(range(50))
    convert_file(name, "copy.cbf")
    assert Path("copy.cbf").stat().st_size
    opened = CTFDeserializer(name, STREAMS, cache_index=True).open()
    assert np.asarray(opened.table.keys).tolist() == list(range(50))
    opened.close()

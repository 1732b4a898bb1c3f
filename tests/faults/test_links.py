"""No write of the package follows a link, which somebody else may have made: the link is replaced."""

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import cntkio
import numpy as np
import pytest
from cntkio import CTFDeserializer, StreamDef, StreamDefs, write_ctf
from cntkio.cli import main
from cntkio.storage import output_file
from support.disks import WRITERS

X = StreamDefs(x=StreamDef(field="x", shape=2))


@pytest.fixture(params=["without a name", "next to its place"])
def precious(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file elsewhere, which stays as it is; files are written in either way."""
    if request.param == "next to its place":
        monkeypatch.setattr(output_file, "UNNAMED", None)
    path = tmp_path / "precious"
    path.write_bytes(b"precious")
    yield path
    assert path.read_bytes() == b"precious"


def writes() -> dict[str, Callable[[Path], object]]:
    """Return functions that write a file named `out` in a folder that has the corpus `a.ctf`."""

    def command(*words: str) -> Callable[[Path], object]:
        return lambda out: main([*words, str(out), "--quiet", str(out.parent / "a.ctf")])

    def corpus(out: Path) -> CTFDeserializer:
        return CTFDeserializer(out.parent / "a.ctf", X)

    return {
        **WRITERS,
        "keys": lambda out: write_ctf(out.parent / "b.ctf", corpus(out), renumber=True, keys_file=out),
        "configuration": command("inspect", "--write-config"),
        "plan": command("plan", "--html"),
    }


@pytest.mark.parametrize("kind", writes())
def test_a_link_is_replaced_and_not_followed(kind: str, precious: Path) -> None:
    folder = precious.parent / "folder"
    folder.mkdir()
    (folder / "a.ctf").write_text("|x 1 2\n")
    for name in ("out", "list.scp"):
        (folder / name).symlink_to(precious)
    writes()[kind](folder / "out")
    assert (folder / "out").is_file() and not (folder / "out").is_symlink()
    assert kind != "archive" or not (folder / "list.scp").is_symlink()


def test_a_temporary_name_that_exists_is_not_used(precious: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_file.secrets, "token_hex", lambda _: "0")
    path = precious.with_name("out")
    path.touch()
    path.with_name(".cntkio-0.part").symlink_to(precious)
    with pytest.raises(OSError, match="the old file is unchanged"):
        write_ctf(path, {"x": np.eye(2)})
    assert path.read_bytes() == b""


def test_an_index_cache_does_not_follow_a_link(precious: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user, corpus = precious.with_name("user"), precious.with_name("a.ctf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(user))
    corpus.write_text("|x 1 2\n" * 10)
    deserializer = CTFDeserializer(corpus, X, cache_index=True)
    (cache,) = deserializer.index_caches()
    cache.unlink()
    cache.symlink_to(precious)
    (second,) = deserializer.index_caches()  # in the user's folder, because the link is left alone
    assert cache.is_symlink() and second.is_relative_to(user)
    assert oct((user / "cntkio").stat().st_mode & 0o777) == "0o700"
    second.unlink()
    second.symlink_to(precious)
    assert deserializer.index_caches() == []


def test_links_of_the_system_and_pipes_are_written_directly(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("wb") as file:
        write_ctf(f"/dev/fd/{file.fileno()}", {"x": np.eye(1)})
    assert path.read_text() == "0\t|x 1\n"
    reading, writing = os.pipe()
    write_ctf(f"/proc/self/fd/{writing}", {"x": np.eye(1)})
    assert os.read(reading, 100) == b"0\t|x 1\n"
    os.close(reading)
    os.close(writing)


def test_only_one_module_opens_files_for_writing() -> None:
    root = Path(cntkio.errors.__file__).resolve().parent
    found = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "O_CREAT" in text:
            found.add(path.relative_to(root).as_posix())
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            modes = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            opens = called in ("open", "fdopen") and any(set(str(mode)) & set("wax+") for mode in modes)
            if opens or called in ("write_bytes", "write_text"):
                found.add(path.relative_to(root).as_posix())
    # The first writes in a folder of `tempfile`, which only this user can write; the second is the module.
    assert found == {"corpora.py", "storage/output_file.py"}

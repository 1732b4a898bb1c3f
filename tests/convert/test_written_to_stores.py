"""Files that the writers upload with options, or into a store. (docs/convert.md)"""

from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import Remote
from cntkio.convert import convert_file, write_file

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
memory = pytest.importorskip("fsspec.implementations.memory")

EXTENSIONS = ["ctf", "cbf", "svm", "parquet", "arrow"]
DATA = {"features": np.float32([[1, 0], [0, 1], [2, 0]]), "label": np.float32([1, 2, 3])}


class _Vault(memory.MemoryFileSystem):  # type: ignore[misc]
    """Objects in memory that only the owner of a token may use."""

    protocol = "vault"

    def __init__(self, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        if token != "secret":
            raise PermissionError("no token")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("vault://", "memory://vault/")))


fsspec.register_implementation("vault", _Vault)


def store_of(kind: str, folder: Path) -> Any:
    """Return a store whose objects are the files of a folder."""
    if kind == "fsspec":
        return pytest.importorskip("fsspec.implementations.dirfs").DirFileSystem(folder, fsspec.filesystem("file"))
    if kind == "obstore":
        return pytest.importorskip("obstore.store").LocalStore(folder)
    found = pytest.importorskip("pyarrow.fs")
    return found.SubTreeFileSystem(str(folder), found.LocalFileSystem())


@pytest.mark.parametrize("kind", ["fsspec", "obstore", "pyarrow"])
def test_every_writer_takes_a_store(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    stored, local = tmp_path / "stored", tmp_path / "local"
    stored.mkdir()
    local.mkdir()
    remote = Remote(store=store_of(kind, stored))
    for extension in EXTENSIONS:
        write_file(f"a.{extension}", DATA, remote=remote)
        write_file(local / f"a.{extension}", DATA)
        write_file(f"part-*.{extension}", DATA, remote=remote, num_files=2)
        write_file(local / f"part-*.{extension}", DATA, num_files=2)
    cntkio.write_ctf("keys.ctf", {"x": DATA["label"]}, renumber=True, remote=remote)
    cntkio.write_ctf(local / "keys.ctf", {"x": DATA["label"]}, renumber=True)
    names = sorted(path.name for path in local.iterdir())
    assert sorted(path.name for path in stored.iterdir()) == names
    assert [name for name in names if (stored / name).read_bytes() != (local / name).read_bytes()] == []


def test_lists_of_archives_and_files_of_keys_go_to_the_same_store(tmp_path: Path) -> None:
    remote = Remote(store=store_of("fsspec", tmp_path))
    cntkio.write_kaldi("a.ark", {"x": DATA["features"]}, scp="a.scp", text=True, remote=remote)
    corpus = cntkio.read_ctf(_written(tmp_path / "words.ctf", b"1 |x 1\n2 |x 2\n"))
    cntkio.write_ctf("b.ctf", corpus, keys_file="b.keys", remote=remote)
    assert (tmp_path / "a.scp").read_text() == "0 a.ark:2\n1 a.ark:19\n2 a.ark:36\n"
    assert (tmp_path / "b.keys").read_text() == "1\n2\n"


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_writers_pass_options_to_the_store(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    remote = Remote(storage_options={"token": "secret"}, num_retries=0)
    with pytest.raises(PermissionError, match="no token"):
        cntkio.write_cbf("vault://a.cbf", DATA, remote=Remote(num_retries=0))
    for extension in EXTENSIONS:
        write_file(f"vault://a.{extension}", DATA, remote=remote)
    convert_file("vault://a.parquet", "vault://again.ctf", remote=remote)
    convert_file("vault://a.parquet", tmp_path / "again.ctf", remote=remote)
    found = fsspec.filesystem("vault", token="secret").cat("vault://again.ctf")
    expected = b"0\t|features 1 0 |label 1\n1\t|features 0 1 |label 2\n2\t|features 2 0 |label 3\n"
    assert found == (tmp_path / "again.ctf").read_bytes() == expected


def test_options_that_are_not_remote_are_refused(tmp_path: Path) -> None:
    with pytest.raises(cntkio.ConfigError, match=r"remote is of the type dict; expected a cntkio\.Remote"):
        cntkio.write_ctf(tmp_path / "a.ctf", DATA, remote={"token": "secret"})  # type: ignore[arg-type]

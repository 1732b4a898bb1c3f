"""Everything that writes takes a URL: the object is in the store afterwards, or an error says why not.

Nothing is written into a local folder that is named like the URL.
"""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import ConfigError
from cntkio.cli import main
from cntkio.convert import convert_file, txt_to_ctf, uci_to_ctf, write_file
from cntkio.formats.written_files import OutputFolder
from cntkio.storage.names import as_url
from cntkio.storage.remote import Remote

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

DATA: dict[str, Any] = {"x": np.eye(4, dtype=np.float32)}
FRAMES = np.eye(3, dtype=np.float32)


def write_table(name: str, path: Any, data: Any = DATA, **options: Any) -> None:
    arrow = pytest.importorskip("cntkio.arrow", exc_type=ModuleNotFoundError)
    getattr(arrow, name)(path, data, **options)


WRITERS: dict[str, Callable[[Any], Any]] = {
    "a.ctf": lambda url: cntkio.write_ctf(url + "a.ctf", DATA),
    "a.ctf.gz": lambda url: cntkio.write_ctf(url + "a.ctf.gz", DATA),
    "a.keys": lambda url: write_file(
        url + "a.ctf",
        cntkio.CTFDeserializer("in.ctf", cntkio.infer_streams("in.ctf")),
        renumber=True,
        keys_file=url + "a.keys",
    ),
    "a-00001.ctf": lambda url: cntkio.write_ctf(url + "a-*.ctf", DATA, num_files=2),
    "a.cbf": lambda url: cntkio.write_cbf(url + "a.cbf", DATA),
    "b.cbf": lambda url: cntkio.write_cbf(url + "b.cbf", DATA, layout="documented"),
    "a.ark": lambda url: cntkio.write_kaldi(url + "a.ark", DATA),
    "a.scp": lambda url: cntkio.write_kaldi(url + "a.ark", DATA, scp=url + "a.scp"),
    "a.svm": lambda url: cntkio.write_svmlight(url + "a.svm", {"features": FRAMES, "label": np.ones(3)}),
    "a.parquet": lambda url: write_table("write_parquet", url + "a.parquet"),
    "a.arrow": lambda url: write_table("write_arrow", url + "a.arrow"),
    "u.mfc": lambda url: cntkio.write_htk_features(url + "u.mfc", FRAMES),
    "b.ark": lambda url: cntkio.write_htk_archive(url + "b.ark", url + "b.scp", [("u", FRAMES)]),
    "b.scp": lambda url: cntkio.write_htk_archive(url + "b.ark", url + "b.scp", [("u", FRAMES)]),
    "a.mlf": lambda url: cntkio.write_mlf(url + "a.mlf", [("u", np.array([0, 1]))], ["a", "b"]),
    "a.bmlf": lambda url: cntkio.write_binary_mlf(url + "a.bmlf", [("u", np.array([1, 2]))]),
    "names": lambda url: cntkio.write_label_mapping(url + "names", ["a", "b"]),
    "c.cbf": lambda url: write_file(url + "c.cbf", DATA),
    "d.cbf": lambda url: convert_file("in.ctf", url + "d.cbf"),
    "e.ctf": lambda url: txt_to_ctf(["in.txt"], url + "e.ctf", ["map"]),
    "f.ctf": lambda url: uci_to_ctf("in.uci", url + "f.ctf", features_start=1, features_dim=2, label_type="None"),
}

COMMANDS: dict[str, str] = {
    "a.ctf": "convert in.ctf {url}a.ctf",
    "b.ctf": "convert --input in.ctf --output {url}b.ctf",
    "a.cbf": "convert in.ctf {url}a.cbf",
    "b.cbf": "convert --json in.ctf {url}b.cbf",
    "a.svm": "convert in.ctf {url}a.svm --stream label:1 --stream features:1:x",
    "a.ark": "convert in.ctf {url}a.ark --stream x:1",
    "a.parquet": "convert in.ctf {url}a.parquet",
    "a.arrow": "convert in.ctf {url}a.arrow",
    "s2.ctf": "convert in.ctf {url}s1.ctf {url}s2.ctf --split 0.5,0.5",
    "m.ctf": "convert --merge in.ctf in2.ctf {url}m.ctf",
    "n-00001.ctf": "convert in.ctf {url}n-*.ctf --num-files 2",
    "keys": "convert in.ctf {url}k.ctf --renumber --keys-file {url}keys",
    "z.ctf.zst": "convert in.ctf {url}z.ctf.zst",
    "o.cbf": "convert ctf2bin --input in.ctf --output {url}o.cbf",
    "t.ctf": "convert txt2ctf --map map --input in.txt --output {url}t.ctf",
    "tj.ctf": "convert txt2ctf --json --map map --input in.txt --output {url}tj.ctf",
    "u.ctf": "convert uci2ctf -in in.uci -fs 1 -fd 2 -lt None -out {url}u.ctf",
    "in_cntk_text.uci": "convert uci2ctf -in {url}in.uci -fs 1 -fd 2 -lt None",
    "page.html": "inspect in.ctf --html {url}page.html",
    "a.cntk": "inspect in.ctf --write-config {url}a.cntk",
    "plan.html": "plan in.ctf --html {url}plan.html",
    "plan.svg": "plan in.ctf --svg {url}plan.svg",
}


@pytest.fixture(params=["memory://out/", "memory:/out/", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The beginning of the URLs of objects, as a text and as `pathlib.Path` writes it; there are inputs to convert."""
    work, store = tmp_path / "work", tmp_path / "store"
    work.mkdir()
    store.mkdir()
    monkeypatch.chdir(work)
    for name in ("in.ctf", "in2.ctf"):
        Path(name).write_text("".join(f"{key + 10 * len(name)} |x {key} |label 1\n" for key in range(1, 5)))
    Path("map").write_text("a\nb\n")
    Path("in.txt").write_text("a\n")
    Path("in.uci").write_text("0 1 2\n")
    inputs = sorted(work.iterdir())
    yield f"{store.as_uri()}/" if request.param == "file" else request.param
    fsspec.filesystem("memory").store.clear()
    assert sorted(path for path in work.iterdir() if path.suffix != ".index") == inputs


def size_of(url: str, name: str) -> int:
    """Return the size of an object in its store."""
    return int(fsspec.core.url_to_fs(as_url(url) + name)[0].size(fsspec.core.url_to_fs(as_url(url) + name)[1]))


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_writes_into_the_store_of_a_url(name: str, url: str) -> None:
    WRITERS[name](url)
    assert size_of(url, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_of_the_command_may_be_a_url(name: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "{url}in.uci" in COMMANDS[name]:
        with fsspec.open(f"{as_url(url)}in.uci", "wb") as file:
            file.write(b"0 1 2\n")
    assert main(COMMANDS[name].format(url=url).split()) == 0, capsys.readouterr().err
    assert size_of(url, name)


def test_a_cache_on_a_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a folder of a local disk"):
        Remote(cache=f"{url}cache")


def test_a_task_of_a_job_writes_into_the_store_of_a_url(url: str) -> None:
    if "memory" in url:  # the task is in another process
        with pytest.raises(ConfigError, match="only in the process that filled it"):
            OutputFolder(url)
        return
    folder: OutputFolder = pickle.loads(pickle.dumps(OutputFolder(url)))
    folder.begin(".ctf")
    cntkio.write_ctf(folder.file("000003.ctf"), DATA, remote=folder.remote)
    assert size_of(url, "000003.ctf")
    OutputFolder(url).begin(".cbf")
    with pytest.raises(FileExistsError, match=r"'000003\.ctf'"):
        OutputFolder(url).begin(".ctf")


def test_a_task_of_a_job_writes_into_a_folder_of_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = OutputFolder("out")
    folder.begin(".ctf")
    monkeypatch.chdir("/")
    assert folder.file("a.ctf") == str(tmp_path / "out" / "a.ctf")

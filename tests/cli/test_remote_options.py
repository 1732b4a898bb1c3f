"""Options of remote stores, on the command line and in configurations."""

import threading
from pathlib import Path
from typing import Any

import pytest
from cntkio import CTFDeserializer, Remote, StreamDef, StreamDefs, check, read_config
from cntkio.cli import main
from cntkio.config.writing import configuration_for
from cntkio.formats import corpus as file_corpus
from cntkio.storage import block_cache
from cntkio.storage.open_input import RemoteInput
from cntkio.storage.remote import default_remote

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
URL = "memory://remote-options/a.ctf"
VERBS = (["inspect"], ["head"], ["check"], ["plan"], ["bench"], ["index"], ["vocab"])


@pytest.fixture(autouse=True)
def stored_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe(URL, b"1 |x 0:1 |# none\n2 |x 1:1 |# one\n")
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("verb", [*VERBS, ["convert", "--to", "ctf", "out.ctf"]])
def test_every_verb_that_reads_keeps_remote_files_in_a_cache(verb: list[str], tmp_path: Path) -> None:
    name, *rest = verb
    arguments = [name, *rest[:2], URL, *rest[2:], "--cache", "kept", "--cache-limit", "50 MB"]
    assert main(arguments) == 0
    blocks = [path for path in (tmp_path / "kept").glob("*/*-*") if path.is_file()]
    assert len(blocks) == 1
    assert default_remote() == Remote()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([URL, "--cache", "kept", "--cache-limit", "much"], "cache_limit is 'much'; expected a number of bytes"),
        ([URL, "--cache-limit", "1 GB"], "cache_limit is given without cache"),
        ([URL, "--cache", "kept", "--cache-limit", "9"], "cache_limit is 9 bytes, but a window of 1 chunk needs"),
        ([URL, "--remote", "num_requests=0"], "num_requests is 0; expected a whole number of at least 1"),
        (["local.ctf", "--cache", "kept"], "--cache applies only to files of remote stores"),
        (["local.ctf", "--remote", "num_retries=1"], "--remote applies only to files of remote stores"),
    ],
)
def test_invalid_options_end_the_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("local.ctf").write_text("|x 1\n")
    assert main(["inspect", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_vocab_refuses_remote_options_of_local_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("local.ctf").write_text("|w 1:1 |# word\n")
    assert main(["vocab", "local.ctf", "--remote", "num_retries=1"]) == 2
    assert "--remote applies only to files of remote stores" in capsys.readouterr().err


def test_unknown_options_of_requests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", URL, "--remote", "requests=3"])
    assert caught.value.code == 2
    assert "num_requests, num_retries, timeout_in_seconds" in capsys.readouterr().err


def test_a_configuration_has_a_section_for_remote_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote = Remote(cache=tmp_path / "kept", cache_limit="1 GB", num_requests=3, num_retries=0, timeout_in_seconds=7)
    streams = StreamDefs(x=StreamDef(field="x", shape=2, is_sparse=True))
    text, program = configuration_for(CTFDeserializer(URL, streams, remote=remote))
    assert f'remote = [ cache = "{tmp_path / "kept"}" ; cacheLimit = 1000000000 ; numRequests = 3 ;' in text
    assert "from cntkio import CTFDeserializer, MinibatchSource, Remote, StreamDef, StreamDefs" in program
    path = tmp_path / "a.cntk"
    path.write_text(text)
    assert dict(read_config(path).calls[0].keywords)["remote"] == remote
    assert main(["bench", str(path)]) == 0
    assert (tmp_path / "kept").is_dir()
    capsys.readouterr()
    for wrong, message in (
        ("numRequest = 3", "unknown key 'numRequest'; expected cache, cacheLimit"),
        ("numRequests = 0", "num_requests is 0"),
        ('cache = "a" ; cacheLimit = "little"', "cache_limit is 'little'"),
    ):
        path.write_text(text.replace("numRequests = 3", "").replace("remote = [ ", f"remote = [ {wrong} ; "))
        if "cache" in wrong:
            path.write_text(path.read_text().replace(f'cache = "{tmp_path / "kept"}" ; cacheLimit = 1000000000 ;', ""))
        assert main(["bench", str(path)]) == 2
        assert message in capsys.readouterr().err


def test_files_of_a_configuration_may_be_urls_in_any_directory(tmp_path: Path) -> None:
    path = tmp_path / "a.cntk"
    streams = StreamDefs(x=StreamDef(field="x", shape=2, is_sparse=True))
    path.write_text(configuration_for(CTFDeserializer(URL, streams))[0])
    assert read_config("a.cntk", f"currentDirectory={tmp_path}").calls[0].arguments[0] == URL


def test_the_options_of_a_check_are_only_those_of_its_thread(tmp_path: Path) -> None:
    seen: list[Remote] = []

    def look(*_: int) -> None:
        thread = threading.Thread(target=lambda: seen.append(default_remote()))
        thread.start()
        thread.join()

    check(URL, remote=Remote(cache=tmp_path / "kept"), progress=look)
    assert seen and all(found == Remote() for found in seen)
    assert len(list((tmp_path / "kept").glob("*/*-*"))) == 1


def test_files_that_are_opened_again_keep_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_corpus, "MOST_OPEN", 1)
    memory = fsspec.filesystem("memory")
    for number in range(5):
        memory.pipe(f"/remote-options/many/{number}.ctf", b"1 |x 0:1\n2 |x 1:1\n" * 300)
    opened: list[str | None] = []
    made = RemoteInput.__init__

    def record(self: RemoteInput, path: str, remote: Remote | None = None, *others: Any) -> None:
        opened.append((remote or default_remote()).cache)
        made(self, path, remote, *others)

    monkeypatch.setattr(RemoteInput, "__init__", record)
    names = "memory://remote-options/many/*.ctf"
    check(names, skip_sequence_ids=True, chunk_size_in_bytes=500, remote=Remote(cache="kept"))
    assert main(["bench", names, "--skip-sequence-ids", "--chunk-size", "500", "--cache", "kept", "--quiet"]) == 0
    assert len(opened) > 10 and set(opened) == {"kept"}


@pytest.mark.parametrize("verb", [["inspect"], ["head"], ["check"], ["plan"], ["convert", "--to", "ctf", "out.ctf"]])
def test_verbs_read_a_table_in_a_store(verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra 'arrow' is not installed")
    sink = arrow.BufferOutputStream()
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"x": [0.5, 2.0]}), sink)
    url = "memory://remote-options/a.parquet"
    fsspec.filesystem("memory").pipe(url, sink.getvalue().to_pybytes())
    name, *rest = verb
    assert main([name, *rest[:2], url, *rest[2:]]) == 0
    if rest:
        assert (tmp_path / "out.ctf").read_text() == "0\t|x 0.5\n1\t|x 2\n"
    else:
        assert capsys.readouterr().out

"""Passwords and signatures of URLs are not in anything that the package prints, logs or stores."""

import contextlib
import logging
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cntkio import (
    CntkIoError,
    CTFDeserializer,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
    check,
    infer_streams,
    read_ctf,
)
from cntkio.cli import main
from cntkio.config.writing import configuration_for
from cntkio.errors import without_secrets
from cntkio.storage import block_cache, stores
from support.range_server import RangeServer, range_server

pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")
pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")

SECRETS = ("PASSWORD", "SIGNATURE")
TEXT = b"1 |x 1 |# one\n2 |x 2 |# two\n"
X = StreamDefs(x=StreamDef(field="x", shape=1))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RangeServer]:
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    files = {
        "a.ctf": TEXT,
        "b.ctf": TEXT.replace(b"2 |", b"9 |"),
        "wrong.ctf": b"1 |x 1\n2 |x 1 2 3 four\n",
        "empty.ctf": b"",
    }
    files |= {
        "a.scp": b"u=a.mfc\n",
        "a.mlf": b'#!MLF!#\n"u"\n0 3 a\n.\n',
        "a.cntk": b"train = [ reader = [ file = a ] ]",
    }
    with range_server(**files) as served:
        yield served


def url_of(server: RangeServer, name: str) -> str:
    return f"{server.url.replace('://', '://me:PASSWORD@')}/{name}?signature=SIGNATURE&x=1"


def require_no_secret(*texts: object) -> None:
    for text in texts:
        assert not [secret for secret in SECRETS if secret in str(text)], text


VERBS = """
    inspect / inspect --json / inspect --write-config a.cntk / head / head --json / stats / stats --json
    stats --html a.html / check / check --json / check --statistics / check --output sound.ctf
    plan / plan --json / plan --html b.html / plan --step 0 / read / read --json / index / index --json
    vocab / vocab --json / config / convert --to ctf --output c.ctf --input / convert --to cbf --output c.cbf --input
    convert --json --to ctf --output d.ctf --input
"""


FILES = ["a.ctf", "wrong.ctf", "missing.ctf", "empty.ctf", "a.scp", "a.mlf", "503"]


def verbs_and_files() -> Iterator[Any]:
    """Yield all pairs; of the files that no option can read, `make test` takes the first line of each verb."""
    seen = set()
    for line in re.split("[/\\n]", VERBS.strip()):
        verb = line.split()[0]
        for number, name in enumerate(FILES):
            yield pytest.param(line, name, marks=[pytest.mark.thorough] if number > 1 and verb in seen else [])
        seen.add(verb)


@pytest.mark.parametrize(("verb", "name"), list(verbs_and_files()))
def test_no_verb_prints_a_secret(
    verb: str,
    name: str,
    server: RangeServer,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "cntkio")
    if name == "503":
        server.fault = lambda _: "503"
    first, *options = verb.split()
    cache = [] if first in ("convert", "config") else ["--cache", "kept"]
    with contextlib.suppress(SystemExit):
        main([first, *options, url_of(server, name), *cache])
    out, err = capsys.readouterr()
    require_no_secret(out, err, caplog.text)
    for path in Path().rglob("*"):
        require_no_secret(path, path.read_bytes() if path.is_file() else b"")


@pytest.mark.parametrize("names", ["{0};{1}", "{0};{0}", "[0]", "*"])
def test_no_verb_prints_a_secret_of_several_files(
    names: str, server: RangeServer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    urls = [url_of(server, name) for name in ("a.ctf", "b.ctf")]
    named = {"[0]": urls[0].replace("a.ctf", "[ab].ctf"), "*": urls[0].replace("a.ctf", "*.ctf")}
    for verb in ("inspect", "bench", "check", "head", "plan", "index", "vocab"):
        main([verb, named.get(names, names.format(*urls))])
    out, err = capsys.readouterr()
    require_no_secret(out, err, caplog.text)


def calls(url: str) -> dict[str, Callable[[], object]]:
    """Return functions that read a URL."""
    remote = Remote(storage_options={"headers": {"X": "PASSWORD"}}, num_retries=0)
    return {
        "read_ctf": lambda: read_ctf(url, remote=remote),
        "infer_streams": lambda: repr(infer_streams(url, remote=remote)),
        "check": lambda: [finding._asdict() for finding in check(url, remote=remote)],
        "deserializer": lambda: repr(CTFDeserializer(url, X, remote=remote)),
        "source": lambda: source(url, remote),
        "options": lambda: (remote, str(remote)),
        "configuration": lambda: configuration_for([CTFDeserializer(url, X)])[0],
    }


def source(url: str, remote: Remote) -> list[Any]:
    with MinibatchSource(CTFDeserializer(url, X, remote=remote, cache_index=True), max_sweeps=1) as made:
        minibatch = made.next_minibatch(2)
        files = getattr(minibatch, "files_of_sequences", None)
        return [made, made.state_dict(), pickle.dumps(made.state_dict()), files, made.plan(2).explain(0)]


@pytest.mark.parametrize("name", ["a.ctf", "wrong.ctf", "missing.ctf", "503"])
@pytest.mark.parametrize("call", calls(""))
def test_no_result_and_no_error_contains_a_secret(
    call: str, name: str, server: RangeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "cntkio")
    if name == "503":
        server.fault = lambda _: "503"
    try:
        require_no_secret(calls(url_of(server, name))[call]())
    except (CntkIoError, OSError) as error:
        require_no_secret("".join(traceback.format_exception(error, limit=0)), error.__dict__)
    require_no_secret(caplog.text)


def test_a_pickle_has_what_a_worker_needs_to_open_the_corpus(server: RangeServer) -> None:
    remote = Remote(storage_options={"headers": {"X": "PASSWORD"}})
    again = pickle.loads(pickle.dumps(CTFDeserializer(url_of(server, "a.ctf"), X, remote=remote)))
    assert again.remote.storage_options == remote.storage_options
    with MinibatchSource(again, max_sweeps=1) as made:
        assert made.num_sequences == 2
    assert "SIGNATURE" in server.requests[-1].path


def test_secrets_are_left_out_of_any_text() -> None:
    text = "at 'https://me:PASSWORD@h:80/a.ctf?b=SIGNATURE', http:/me:PASSWORD@h/a and s3://b/part-?.ctf"
    assert without_secrets(text) == "at 'https://h:80/a.ctf', http:/h/a and s3://b/part-?.ctf"

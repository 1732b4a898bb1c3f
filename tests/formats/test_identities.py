"""No two objects share an entry of a cache; an object shares its entry with itself under other credentials."""

import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from cntkio import CTFDeserializer, MinibatchSource, Remote, StreamDef, StreamDefs
from cntkio.storage import block_cache
from cntkio.storage.remote import without_access
from cntkio.storage.stores import stored_object
from hypothesis import assume, given
from hypothesis import strategies as st
from support.forks import in_a_fork
from support.range_server import range_server

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

X = StreamDefs(x=StreamDef(field="x", shape=1))


def identity(path: str, remote: Remote | None = None) -> str:
    return stored_object(path, remote or Remote()).identity


# ------------------------------------------------------------------------------------------------------------ URLs

WORDS = st.sampled_from(["a", "b", "A", "a%20b", "a b", "ä", "sig", "token", "Expires", "1", "a@b", "a=b", ""])
NAMES = st.sampled_from(["a", "b", "A", "a.b", "a-1"])
URLS = st.fixed_dictionaries(
    {
        "scheme": st.sampled_from(["http", "https"]),
        "user": st.none() | NAMES,
        "host": NAMES,
        "port": st.none() | st.sampled_from(["80", "8000"]),
        "path": st.lists(WORDS, max_size=3).map("/".join),
        "query": st.none()
        | st.lists(st.tuples(NAMES | st.sampled_from(["signature", "expires", "se"]), WORDS), max_size=3),
        "fragment": st.none() | NAMES,
    }
)
SIGNATURES = st.sampled_from(
    [
        "",
        "X-Amz-Algorithm=A&X-Amz-Credential={0}&X-Amz-Date={0}&X-Amz-Expires=9&X-Amz-SignedHeaders=h&X-Amz-Signature={0}",
        "AWSAccessKeyId={0}&Signature={0}&Expires={0}",
        "GoogleAccessId={0}&Expires={0}&Signature={0}",
        "Policy={0}&Signature={0}&Key-Pair-Id={0}",
        "sv={0}&sr=b&sp=r&se={0}&sig={0}",
    ]
)


def url_of(parts: dict[str, Any], password: str = "", signature: str = "") -> str:
    user = "" if parts["user"] is None else parts["user"] + (password and f":{password}") + "@"
    port = "" if parts["port"] is None else f":{parts['port']}"
    items = [] if parts["query"] is None else [f"{name}={value}" for name, value in parts["query"]]
    query = "&".join([*items, *([signature] if signature else [])])
    mark = "" if parts["query"] is None and not query else "?"
    fragment = "" if parts["fragment"] is None else f"#{parts['fragment']}"
    return f"{parts['scheme']}://{user}{parts['host']}{port}/{parts['path']}{mark}{query}{fragment}"


@given(URLS, URLS)
def test_urls_that_differ_in_any_part_have_different_identities(first: dict[str, Any], second: dict[str, Any]) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    # Alone, a change of one part is rare in two random URLs.
    for name in first:
        urls = url_of(first), url_of({**first, name: second[name]})
        assert (identity(urls[0]) == identity(urls[1])) == (urls[0] == urls[1])
    assert (identity(url_of(first)) == identity(url_of(second))) == (url_of(first) == url_of(second))


@pytest.mark.parametrize("name", ["sig", "Signature", "AWSAccessKeyId", "Key-Pair-Id", "se"])
def test_a_parameter_that_alone_signs_nothing_belongs_to_the_object(name: str) -> None:
    assert without_access(f"http://h/a?id=1&{name}=2") != without_access("http://h/a?id=1")


@given(URLS, SIGNATURES, WORDS, WORDS)
def test_a_url_has_one_identity_with_any_password_and_signature(
    parts: dict[str, Any], signature: str, first: str, second: str
) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    assume(parts["query"] != [])
    assume(not {"signature", "expires", "se"} & {name for name, _ in parts["query"] or ()})
    found = [url_of(parts, word.replace("@", "-"), signature.format(word)) for word in (first, second)]
    assert identity(found[0]) == identity(found[1]) == identity(url_of(parts))


def test_an_identity_is_a_hash_that_survives_the_process() -> None:
    pytest.importorskip("s3fs")
    url = "s3://me:secret@a/b"
    assert re.fullmatch("[0-9a-f]{32}", identity(url))
    assert in_a_fork(lambda: identity(url)) == repr(identity(url))
    assert identity("memory://a/b") == identity("memory://a/b")
    assert in_a_fork(lambda: identity("memory://a/b")) != repr(identity("memory://a/b"))


# ------------------------------------------------------------------------------------------------------------ stores


class Mine(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]
    """A file system of a class that fsspec does not know."""


def stores(folder: Path) -> dict[str, tuple[str, Remote]]:
    """Return objects that all differ, each with its path and its store."""
    obstore = pytest.importorskip("obstore")
    pyarrow = pytest.importorskip("pyarrow.fs")
    pytest.importorskip("s3fs")
    pytest.importorskip("aiohttp")
    from obstore.fsspec import FsspecStore

    made = obstore.store
    local = fsspec.filesystem("file")

    given: dict[str, Any] = {
        "memory 1": made.MemoryStore(),
        "memory 2": made.MemoryStore(),
        "memory 3": fsspec.filesystem("memory"),
        "memory 4": fsspec.filesystem("dir", path="x", target_protocol="memory"),
        "memory 5": FsspecStore("memory"),
        "memory 6": FsspecStore("memory", asynchronous=False, skip_instance_cache=True),
        "memory 7": pyarrow.PyFileSystem(pyarrow.FSSpecHandler(fsspec.filesystem("memory"))),
        "mine 1": Mine(skip_instance_cache=True),
        "mine 2": Mine(skip_instance_cache=True),
        "local": made.LocalStore(folder),
        "local x": made.LocalStore(folder / "x", mkdir=True),
        "http": made.HTTPStore("http://h/x"),
        "http user": made.HTTPStore("http://u@h/x"),
        "http y": made.HTTPStore("http://h/y"),
        "http query": made.HTTPStore("http://h/x?id=1"),
        "s3": made.S3Store("b", endpoint="http://h", access_key_id="k", secret_access_key="s"),
        "s3 c": made.S3Store("c", endpoint="http://h", access_key_id="k", secret_access_key="s"),
        "s3 g": made.S3Store("b", endpoint="http://g", access_key_id="k", secret_access_key="s"),
        "s3 prefix": made.S3Store("b", prefix="p", endpoint="http://h", access_key_id="k", secret_access_key="s"),
        "gs": made.GCSStore("b", skip_signature=True),
        "azure": made.AzureStore("b", account_name="m", skip_signature=True),
        "azure n": made.AzureStore("b", account_name="n", skip_signature=True),
        "dir": fsspec.filesystem("dir", path=str(folder), target_protocol="file"),
        "dir x": fsspec.filesystem("dir", path=str(folder / "x"), target_protocol="file"),
        "dir of a store": fsspec.filesystem("dir", path=str(folder), fs=local),
        "fsspec s3": fsspec.filesystem("s3", endpoint_url="http://h"),
        "fsspec s3 g": fsspec.filesystem("s3", endpoint_url="http://g"),
        "fsspec s3 kwargs": fsspec.filesystem("s3", client_kwargs={"endpoint_url": "http://h"}),
        "fsspec obstore": FsspecStore("s3", config={"endpoint": "http://h"}),
        "fsspec obstore g": FsspecStore("s3", config={"endpoint": "http://g"}),
        "fsspec http": fsspec.filesystem("http"),
        "fsspec http headers": fsspec.filesystem("http", headers={"Authorization": "Basic u"}),
        "arrow": pyarrow.LocalFileSystem(),
        "arrow x": pyarrow.SubTreeFileSystem(str(folder / "x"), pyarrow.LocalFileSystem()),
        "arrow y": pyarrow.SubTreeFileSystem(str(folder / "y"), pyarrow.LocalFileSystem()),
        "arrow s3": pyarrow.S3FileSystem(endpoint_override="h", access_key="k", secret_key="s"),
        "arrow s3 g": pyarrow.S3FileSystem(endpoint_override="g", access_key="k", secret_key="s"),
        "arrow fsspec": pyarrow.PyFileSystem(pyarrow.FSSpecHandler(local)),
    }
    by_url = {
        "url memory": ("memory://a", Remote()),
        "url file": (f"file://{folder}/a", Remote()),
        "url s3": ("s3://b/a", Remote()),
        "url s3 g": ("s3://b/a", Remote(storage_options={"endpoint_url": "http://g"})),
        "url s3 user": ("s3://u@b/a", Remote()),
        "url s3 users": ("s3://u:p@b/a", Remote()),
        "url s3 query": ("s3://b/a?sig=1", Remote()),
        "url s3 chained": ("simplecache::s3://b/a", Remote()),
        "url http": ("http://h/a", Remote()),
        "url http user": ("http://u@h/a", Remote()),
        "url chained": ("simplecache::http://h/a", Remote()),
        "url chained query": ("simplecache::http://h/a?id=1", Remote()),
        "url https": ("https://h/a", Remote()),
    }
    return {name: ("a", Remote(store=store)) for name, store in given.items()} | by_url


def test_no_two_stores_share_an_entry(tmp_path: Path) -> None:
    found = {
        (name, path): identity(path, remote)
        for name, (first, remote) in stores(tmp_path).items()
        for path in (first, f"{first}/b", f"http://u:{first[:1]}@h", "http://u:q@h")
        if path == first or remote.store is not None
    }
    for (first, one), (second, other) in itertools.combinations(found.items(), 2):
        is_same = {first, second} == {("fsspec http", "http://u:a@h"), ("fsspec http", "http://u:q@h")}
        is_same |= {first, second} == {("fsspec http headers", "http://u:a@h"), ("fsspec http headers", "http://u:q@h")}
        assert (one == other) == is_same, (first, second)


@pytest.mark.parametrize("kind", ["url s3", "s3", "azure", "fsspec s3", "fsspec http", "arrow s3"])
def test_credentials_do_not_change_the_identity(kind: str) -> None:
    made, pyarrow = pytest.importorskip("obstore").store, pytest.importorskip("pyarrow.fs")
    pytest.importorskip("s3fs")

    def remote(secret: str) -> Remote:
        options = {"access_key_id": secret, "secret_access_key": secret}
        return {
            "url s3": lambda: Remote(storage_options={"key": secret, "secret": secret, "token": secret}),
            "s3": lambda: Remote(store=made.S3Store("b", endpoint="http://h", **options)),
            "azure": lambda: Remote(store=made.AzureStore("b", account_name="n", account_key=secret)),
            "fsspec s3": lambda: Remote(store=fsspec.filesystem("s3", key=secret, secret=secret)),
            "fsspec http": lambda: Remote(store=fsspec.filesystem("http")),
            "arrow s3": lambda: Remote(store=pyarrow.S3FileSystem(access_key=secret, secret_key=secret)),
        }[kind]()

    path = {"url s3": "s3://b/a", "fsspec http": "http://h/a"}.get(kind, "a")
    assert identity(path, remote("aGVsbG8=")) == identity(path, remote("d29ybGQ="))
    assert identity(path, remote("aGVsbG8=")) == identity(path, pickle.loads(pickle.dumps(remote("aGVsbG8="))))


# ------------------------------------------------------------------------------------------------------------ caches


def values(path: str, remote: Remote) -> list[float]:
    corpus = CTFDeserializer(path, X, remote=remote, cache_index=True)
    with MinibatchSource(corpus, max_sweeps=1, randomize=False) as source:
        return [value for minibatch in source.minibatches(100) for value in minibatch["x"].values[:, 0].tolist()]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user cache"))
    monkeypatch.setattr(block_cache, "BLOCK", 100)
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", 1)


def test_memory_stores_with_the_same_names_deliver_their_own_data(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore")
    # All have the same size and version; the last has other lines, so that the index of another does not fit it.
    for text in (b"|x 1\n" * 9, b"|x 2\n" * 9, b"|x 3\n" * 7 + b"|x 33333\n"[:10]):
        remote = Remote(store=obstore.store.MemoryStore(), cache=tmp_path / "cache")
        obstore.put(remote.store, "a.ctf", text + b" " * (45 - len(text)))
        expected = [float(line[3:]) for line in text.splitlines()]
        assert [values("a.ctf", remote) for _ in range(2)] == [expected] * 2


def test_urls_that_differ_in_their_query_deliver_their_own_data(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    with range_server(**{"d?id=1": b"|x 1\n" * 9, "d?id=2": b"|x 2\n" * 9}) as server:
        server.e_tag = lambda _: '"0"'
        for _ in range(2):
            for number in (1, 2):
                assert values(f"{server.url}/d?id={number}", Remote(cache=tmp_path)) == [number] * 9

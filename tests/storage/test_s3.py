"""A corpus in a store that speaks S3: a server of moto on this machine, which the test starts and stops."""

import gzip
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cntkio import CorpusError, CTFDeserializer, MinibatchSource, Remote, StreamDef, StreamDefs
from cntkio.cli import main
from cntkio.storage.stores import stored_object
from support.counting_relay import counting_relays
from support.s3_server import s3_server

pytest.importorskip("moto", reason="moto, which has a server of S3, is not installed (pip install --group s3)")
s3fs = pytest.importorskip("s3fs", reason="fsspec reads S3 only with s3fs")

fsspec_conf = pytest.importorskip("fsspec.config", reason="the extra 'remote' is not installed").conf
X = StreamDefs(x=StreamDef(field="x", shape=2))
KEYS = {"key": "testing", "secret": "testing"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("moto")) as url:
        yield url


def delivered(deserializer: CTFDeserializer) -> list[object]:
    with MinibatchSource(deserializer, max_sweeps=2) as source:
        return [
            (minibatch.keys_of_sequences.tolist(), minibatch["x"].values.tolist())
            for minibatch in source.minibatches(100)
        ]


@pytest.mark.slow
def test_a_corpus_in_s3_equals_a_local_corpus(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "indexes"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    options = {**KEYS, "endpoint_url": endpoint}
    store = s3fs.S3FileSystem(**options)
    store.mkdir("bucket")
    choose = random.Random(0)
    for number in range(3):
        lines = [f"{1000 * number + line} |x {choose.random():.6f} {line}\n" for line in range(1000)]
        (tmp_path / f"train-{number}.ctf").write_text("".join(lines))
        store.put_file(str(tmp_path / f"train-{number}.ctf"), f"bucket/corpus/train-{number}.ctf")
    expected = delivered(CTFDeserializer(tmp_path / "train-*.ctf", X, chunk_size_in_bytes=5000))
    for remote in (
        Remote(storage_options=options),
        Remote(store=store),
        Remote(storage_options=options, cache=tmp_path / "cache", cache_limit="1 GB"),
    ):
        path = "bucket/corpus/train-*.ctf" if remote.store is not None else "s3://bucket/corpus/train-{0..2}.ctf"
        corpus = CTFDeserializer(path, X, chunk_size_in_bytes=5000, cache_index=True, remote=remote)
        assert delivered(corpus) == expected
    s3_store = pytest.importorskip("obstore.store", reason="obstore is not installed").S3Store
    of_obstore = s3_store(
        "bucket",
        endpoint=endpoint,
        access_key_id="testing",
        secret_access_key="testing",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    for path in ("corpus/train-*.ctf", "corpus/train-{0..2}.ctf"):
        for cache in (None, tmp_path / "cache of obstore"):
            corpus = CTFDeserializer(path, X, chunk_size_in_bytes=5000, remote=Remote(store=of_obstore, cache=cache))
            assert delivered(corpus) == expected
    facts = stored_object("s3://bucket/corpus/train-0.ctf", Remote(storage_options=options)).facts()
    assert facts.version.startswith("etag=")
    source = MinibatchSource(
        CTFDeserializer("s3://bucket/corpus/train-0.ctf", X, remote=Remote(storage_options=options)),
        max_sweeps=1,
        read_ahead_in_bytes=0,
    )
    with source:
        time.sleep(0.01)
        store.pipe_file("bucket/corpus/train-0.ctf", b"0 |x 1 2\n")
        with pytest.raises(CorpusError, match=r"s3://bucket/corpus/train-0\.ctf: changed while it was read"):
            list(source.minibatches(10))


@pytest.mark.slow
def test_the_command_indexes_and_reads_compressed_objects_in_s3(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "indexes"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setitem(fsspec_conf, "s3", {"endpoint_url": endpoint})
    store = s3fs.S3FileSystem(**KEYS, endpoint_url=endpoint)
    store.mkdir("packed")
    for number in range(2):
        text = b"".join(b"%d |x %d 1\n" % (key, key) for key in range(100 * number, 100 * number + 100))
        store.pipe_file(f"packed/{number}.ctf.gz", gzip.compress(text))
    pattern = "s3://packed/*.ctf.gz"
    assert main(["index", pattern]) == 0
    assert len(store.glob("packed/*.index")) == 4
    assert main(["bench", "--json", "--cache", str(tmp_path / "cache"), pattern]) == 0
    assert '"sequences": 200' in capsys.readouterr().out


RANKS, CHUNK, WINDOW = 4, 32 << 10, 16
PROGRAM = Path(__file__).with_name("s3_rank_program.py")


@pytest.mark.slow
def test_with_lanes_each_rank_of_a_job_fetches_its_part(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "indexes"))
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setitem(fsspec_conf, "s3", {"endpoint_url": endpoint})
    store, choose = s3fs.S3FileSystem(**KEYS, endpoint_url=endpoint), random.Random(1)
    text = "".join(f"{key} |x {choose.random():.6f} 1\n" * choose.randrange(1, 40) for key in range(10_000)).encode()
    store.mkdir("job")
    store.pipe_file("job/a.ctf", text)
    assert main(["index", "-q", "--chunk-size", str(CHUNK), "s3://job/a.ctf"]) == 0
    (index,) = store.glob("job/*.index")
    setting = [str(number) for number in (RANKS, CHUNK, WINDOW)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with counting_relays(int(endpoint.rpartition(":")[2]), RANKS) as relays, ExitStack() as stack:
        commands = [[sys.executable, PROGRAM, relay.url, str(rank), *setting] for rank, relay in enumerate(relays)]
        ranks: list[Any] = [stack.enter_context(subprocess.Popen(command, **pipes)) for command in commands]  # type: ignore[call-overload]
        assert [rank.stdout.readline() for rank in ranks] == ["open\n"] * RANKS
        of_opening = [relay.num_bytes for relay in relays]
        steps = [json.loads(rank.communicate("\n")[0]) for rank in ranks]
        shares = [(relay.num_bytes - before) / len(text) for relay, before in zip(relays, of_opening, strict=True)]
    print(f"opening: {max(of_opening):,} bytes; of the text: {', '.join(f'{share:.3f}' for share in shares)}")
    assert len({len(of_rank) for of_rank in steps}) == 1
    assert sorted(key for of_rank in steps for step in of_rank for key in step) == list(range(10_000))
    assert max(of_opening) <= store.size(index) + (64 << 10) + CHUNK
    assert max(shares) <= 1.1 / RANKS + WINDOW * CHUNK / len(text)

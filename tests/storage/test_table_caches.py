"""Index caches of tables: a cache changes the time only, whatever happens to it."""

import contextlib
import itertools
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CntkIoError, CorpusError, MinibatchSource

pytest.importorskip("pyarrow")

import pyarrow as pa
from cntkio.arrow import ArrowDeserializer, files, kept
from cntkio.cli import main
from cntkio.formats.contract import Corpus
from cntkio.formats.pieces import read_corpus
from pyarrow import ipc, parquet
from support.damaged_caches import HOSTILE, NUMBERS, header_of, mutated, paths_in, replaced, with_header
from support.range_server import range_server
from support.rounds import rounds, step

COUNT = 40
X = pa.array([[float(row)] * (row % 4) for row in range(COUNT)], pa.list_(pa.float32()))
TABLES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rows": ({"x": X}, {}),
    "numbers": ({"key": pa.array(np.arange(COUNT)[::-1] * 2**33), "x": X}, {}),
    "texts": ({"key": [f"u{row:>3}" for row in range(COUNT)], "x": X}, {}),
    "equal keys": ({"key": [row // 2 for row in range(COUNT)], "x": X}, {}),
    "equal lengths": ({"x": [[1.0, float(row)] for row in range(COUNT)]}, {}),
    "categories": ({"x": pa.array([f"c{row % 3}" for row in range(COUNT)]).dictionary_encode()}, {}),
    "nulls": ({"x": pa.array([[float(row)] if row % 3 else None for row in range(COUNT)])}, {"nulls": "drop"}),
    "flat": ({"x": [float(row) for row in range(COUNT)]}, {}),
    "sparse": ({"x": [[{"indices": [row], "values": [1.5]}] for row in range(COUNT)]}, {"shapes": {"x": COUNT}}),
}
STORED = kept.KeptIndex.stored
FORMS = {"a.parquet": None, "a.arrow": ipc.new_file, "a.arrows": ipc.new_stream}


class Cached:
    """A table that is read with a cache."""

    def __init__(self, folder: Path, kind: str, form: str) -> None:
        folder.mkdir()
        data, self.options = TABLES[kind]
        self.path = folder / form
        self.write(pa.table(data))

    def write(self, table: pa.Table) -> None:
        if (new := FORMS[self.path.name]) is None:
            parquet.write_table(table, self.path, row_group_size=7)
            return
        with new(self.path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)

    def read(self, **options: Any) -> tuple[Any, ...]:
        """Return all that the corpus delivers."""
        deserializer = ArrowDeserializer(self.path, **{"cache_index": True, **self.options, **options})
        with contextlib.closing(deserializer.open()) as corpus:
            return content_of(corpus)

    @property
    def cache(self) -> Path:
        (found,) = [path for path in self.path.parent.iterdir() if path != self.path]
        return found


def content_of(corpus: Corpus) -> tuple[Any, ...]:
    minibatch, table = read_corpus(corpus), corpus.table
    data = minibatch["x"]
    parts = data.values.tolist(), data.offsets.tolist(), data.stream.dim
    return (*parts, minibatch.keys_of_sequences.tolist(), table.lengths.tolist(), table.chunk_starts.tolist())


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


def all_tables(folder: Path) -> Iterator[Cached]:
    for kind, form in itertools.product(TABLES, FORMS):
        if (kind, form) != ("categories", "a.arrows"):  # a stream with dictionaries cannot be read in any order
            yield Cached(folder / f"{kind} {form}", kind, form)


def test_a_cached_table_is_opened_without_reading_the_file(tmp_path: Path, monkeypatch: Any) -> None:
    for cached in all_tables(tmp_path):
        plain = cached.read(cache_index=False)
        assert cached.read() == cached.read() == plain == cached.read(cache_index="verify")
        with monkeypatch.context() as patch:
            patch.setattr(files.TableFile, "source", lambda self: pytest.fail("the file is read"))
            for options in ({}, {"cache_index": "verify"}):
                given = {"cache_index": True, **cached.options, **options}
                with contextlib.closing(ArrowDeserializer(cached.path, **given).open()) as corpus:
                    assert corpus.table.lengths.tolist() == plain[4]
                    line = 3 if cached.options.get("nulls") else 2
                    assert corpus.places(np.array([1])).texts() == [f"{cached.path}:{line}"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["overwritten", "replaced", "cut"])
def test_the_cache_of_another_table_is_not_used(tmp_path: Path, form: str, how: str) -> None:
    cached = Cached(tmp_path / "data", "numbers", form)
    cached.read()
    if how == "cut":
        os.truncate(cached.path, cached.path.stat().st_size - 9)
        with contextlib.suppress(CntkIoError):
            assert cached.read() == cached.read(cache_index=False)
        return
    if how == "replaced":
        cached.path.rename(tmp_path / "old")
    cached.write(pa.table(TABLES["numbers"][0]).slice(3))
    assert cached.read() == cached.read() == cached.read(cache_index=False)


def test_other_options_have_another_cache(tmp_path: Path) -> None:
    cached = Cached(tmp_path / "data", "equal lengths", "a.parquet")
    for options in ({}, {"shapes": {"x": 2}}, {"nulls": "drop"}, {"defines_mb_size": "x"}):
        assert cached.read(**options) == cached.read(**options) == cached.read(**options, cache_index=False)
    assert len(list(cached.path.parent.iterdir())) == 5


def test_damaged_caches_of_tables_deliver_the_rows_and_are_made_again(tmp_path: Path) -> None:
    chance, num_made = random.Random(1), 0
    prepared = [(one, one.read(cache_index=False), one.read(), one.cache.read_bytes()) for one in all_tables(tmp_path)]
    for number in range(rounds(100)):
        cached, plain, _, whole = prepared[number % len(prepared)]
        content = mutated(whole, chance)
        cached.cache.write_bytes(content)
        assert cached.read() == plain
        num_made += cached.cache.read_bytes() != content
    assert num_made > 0.9 * rounds(100)


def test_hostile_facts_of_tables_raise_no_error_but_a_mismatch(tmp_path: Path) -> None:
    for kind in ("nulls", "texts", "equal keys"):
        cached = Cached(tmp_path / kind, kind, "a.parquet")
        cached.read()
        path, whole = cached.cache, cached.cache.read_bytes()
        places = paths_in(header_of(whole))
        for place, value in itertools.islice(itertools.product(places, HOSTILE), 0, None, step(97)):
            path.write_bytes(with_header(whole, lambda header, at=place, to=value: replaced(header, at, to)))
            with contextlib.suppress(CntkIoError):
                cached.read()


def test_hostile_arrays_of_tables_raise_no_error_but_a_mismatch(tmp_path: Path, monkeypatch: Any) -> None:
    names = ["chunk_starts", "batches_of_chunks", "first_rows", "num_kept", "kept", "lengths", "keys", "schema",
             "places_of_batches", "sizes_of_batches", "classes"]  # fmt: skip
    cases = list(itertools.product(("nulls", "texts", "categories"), ("a.parquet", "a.arrow"), names, NUMBERS, (0, -1)))
    for number, (kind, form, name, value, at) in enumerate(cases[:: step(31)]):
        cached = Cached(tmp_path / str(number), kind, form)

        def hostile(index: Any, name: str = name, value: int = value, at: int = at) -> Any:
            facts, arrays = STORED(index)
            changed = arrays[name].copy()
            if len(changed):
                changed[at] = np.uint64(value).astype(changed.dtype)
            return facts, {**arrays, name: changed}

        with monkeypatch.context() as patch:
            patch.setattr(kept.KeptIndex, "stored", hostile)
            cached.read()
        with contextlib.suppress(CntkIoError):
            cached.read()


def with_other_schema(index: Any) -> Any:
    return STORED(index._replace(schema=pa.schema([("x", pa.list_(pa.int64()))])))


def test_a_schema_of_another_table_is_a_mismatch(tmp_path: Path, monkeypatch: Any) -> None:
    for number, form in enumerate(FORMS):
        cached = Cached(tmp_path / str(number), "rows", form)
        with monkeypatch.context() as patch:
            patch.setattr(kept.KeptIndex, "stored", with_other_schema)
            cached.read()
        with pytest.raises(CorpusError, match="delete the index cache"):
            cached.read()


def test_opening_tables_in_a_store_with_their_caches_asks_for_facts_alone() -> None:
    count, file = 20, pa.BufferOutputStream()
    parquet.write_table(pa.table({"key": range(30), "x": X[:30]}), file, row_group_size=5)
    content = file.getvalue().to_pybytes()
    with range_server(**{f"{number}.parquet": content for number in range(count)}) as server:
        names = [f"{server.url}/{number}.parquet" for number in range(count)]
        corpus = ArrowDeserializer(names, cache_index=True, keys="per_file")
        found = []
        for _ in range(2):
            server.requests.clear()
            with MinibatchSource(corpus, randomize=False, max_sweeps=1) as source:
                num_requests = len(server.requests)
                found.append([one["x"].values.tolist() for one in source.minibatches(100)])
    assert found[0] == found[1]
    # A source asks a table for the type of its keys before it opens all.
    assert num_requests <= count + 1


def test_the_verb_writes_the_cache_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached = Cached(tmp_path / "data", "numbers", "a.parquet")
    assert main(["index", str(cached.path)]) == 0
    assert str(cached.cache) in capsys.readouterr().out

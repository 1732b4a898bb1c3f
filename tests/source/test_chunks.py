"""The chunk store over corpora that record their loads: when chunks are loaded, kept, and counted."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from cntkio import CorpusError, FormatError
from cntkio.formats import Loaded
from cntkio.formats.contract import Corpus, Index
from cntkio.formats.report import Report
from cntkio.formats.table import Keys, SequenceTable
from cntkio.source.arrangement import arrange
from cntkio.source.chunks import ChunkStore
from cntkio.timeline import ChunkRefs, Plan


class FakeChunk:
    """A chunk that claims to have `num_bytes` bytes."""

    def __init__(self, chunk_id: int, num_bytes: int) -> None:
        self.chunk_id = chunk_id
        self.num_bytes = num_bytes


class FakeCorpus(Corpus):
    """A corpus of chunks with one sequence each; it records which are loaded, and whose errors are counted."""

    def __init__(self, num_chunks: int = 10, keys: Sequence[int] | None = None, num_bytes: int = 1 << 20) -> None:
        table = SequenceTable(
            Keys.of(range(num_chunks) if keys is None else keys),
            np.ones(num_chunks, np.uint32),
            np.arange(num_chunks + 1),
        )
        self.index = Index((), table, name="fake", loads_parts=False, loads_at_once=2)
        self.report = Report("fake")
        self.num_bytes = num_bytes
        self.loaded: list[int] = []
        self.counted: list[int] = []
        self.bad: set[int] = set()
        self.unreadable: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def load(self, chunk_id: int, sequences: Any = None) -> Loaded:
        self.loaded.append(chunk_id)
        assert self.gate.wait(60)
        if chunk_id in self.unreadable:
            raise OSError(f"chunk {chunk_id} cannot be read")
        return Loaded(chunk_id, FakeChunk(chunk_id, self.num_bytes))  # type: ignore[arg-type]

    def take_parsed(self) -> dict[int, Loaded]:
        return {}

    def account_for(self, loaded: Loaded) -> None:
        self.counted.append(loaded.chunk_id)
        if loaded.chunk_id in self.bad:
            raise FormatError(f"chunk {loaded.chunk_id} is bad")


def store(*corpora: Any, **options: Any) -> ChunkStore:
    defaults: dict[str, Any] = {
        "window_stays_in_use": True,
        "keeps_all": False,
        "loads_window": False,
        "read_ahead_in_bytes": 0,
    }
    return ChunkStore(corpora, arrange(corpora), **{**defaults, **options})


def refs(*chunk_ids: int) -> ChunkRefs:
    """Refer to a sequence of each of these chunks."""
    order = list(dict.fromkeys(chunk_ids))
    ranks = np.array([order.index(chunk_id) for chunk_id in chunk_ids], np.uint32)
    return ChunkRefs(order, [chunk_ids.index(chunk_id) for chunk_id in order], ranks, np.zeros(len(ranks), np.uint32))


def plan(chunks: ChunkStore, needed: Iterable[int], ahead: Iterable[int] = ()) -> None:
    chunks.plan(Plan(list(needed), 0), [], iter(ahead))


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def corpus() -> FakeCorpus:
    return FakeCorpus()


def test_no_chunk_is_loaded_twice_while_it_is_in_the_window(corpus: FakeCorpus) -> None:
    chunks = store(corpus)
    plan(chunks, [0, 1])
    for _ in range(3):
        taken = chunks.take([refs(0, 1, 0)], [0, 1, 3])
        assert [chunk.chunk_id for chunk in taken.chunks[0]] == [0, 1]  # type: ignore[attr-defined]
        assert (taken.num_sound, taken.error) == (2, None)
    plan(chunks, [1, 2])
    chunks.take([refs(1, 2)], [0, 2])
    assert sorted(corpus.loaded) == [0, 1, 2]
    assert corpus.counted == [0, 1, 2]
    assert sorted(chunks.in_memory(0)) == [1, 2]
    chunks.close()


def test_chunks_are_loaded_ahead_as_far_as_there_is_room() -> None:
    corpus = FakeCorpus(20, num_bytes=100)
    chunks = store(corpus, read_ahead_in_bytes=350)
    plan(chunks, [0])
    chunks.take([refs(0)], [0, 1])
    asked: list[int] = []

    def ahead() -> Iterator[int]:
        for chunk_id in range(1, 20):
            asked.append(chunk_id)
            yield chunk_id

    plan(chunks, [0], ahead())
    wait_until(lambda: len(corpus.loaded) == 4)
    chunks.close()
    assert sorted(corpus.loaded) == [0, 1, 2, 3]
    assert asked == [1, 2, 3]  # the room is for three chunks
    assert corpus.counted == [0]


def test_without_room_no_chunk_is_loaded_ahead(corpus: FakeCorpus) -> None:
    chunks = store(corpus, read_ahead_in_bytes=0)
    plan(chunks, [0], iter([1, 2]))
    chunks.take([refs(0)], [0, 1])
    chunks.close()
    assert corpus.loaded == [0]


def test_a_chunk_larger_than_the_first_room_is_loaded_ahead() -> None:
    corpus = FakeCorpus(9, num_bytes=40 << 20)
    chunks = store(corpus, read_ahead_in_bytes=256 << 20)
    plan(chunks, [0])
    chunks.take([refs(0)], [0, 1])
    plan(chunks, [0], range(1, 9))
    wait_until(lambda: len(corpus.loaded) == 2)
    chunks.close()
    assert corpus.loaded == [0, 1]


def test_a_load_that_has_not_begun_is_withdrawn(corpus: FakeCorpus) -> None:
    chunks = store(corpus, read_ahead_in_bytes=100 << 20)
    corpus.gate.clear()
    plan(chunks, [0], range(1, 8))
    wait_until(lambda: len(corpus.loaded) == 2)  # by two threads
    plan(chunks, [9])
    corpus.gate.set()
    chunks.take([refs(9)], [0, 1])
    chunks.close()
    assert sorted(corpus.loaded) == [0, 1, 9]


def test_an_error_counts_when_its_chunk_comes_into_use(corpus: FakeCorpus) -> None:
    corpus.bad = {1}
    chunks = store(corpus)
    plan(chunks, [0, 1, 2])
    taken = chunks.take([refs(0, 1, 2)], [0, 1, 2, 3])
    assert [chunk.chunk_id for chunk in taken.chunks[0]] == [0]  # type: ignore[attr-defined]
    assert taken.num_sound == 1
    assert str(taken.error) == "chunk 1 is bad"
    assert corpus.counted == [0, 1]
    chunks.close()


def test_a_released_chunk_counts_again(corpus: FakeCorpus) -> None:
    in_order = store(corpus, window_stays_in_use=False)
    plan(in_order, [0, 1])
    in_order.take([refs(0, 1, 0)], [0, 1, 2, 3])
    assert corpus.counted == [0, 1, 0]
    in_order.close()
    other = FakeCorpus()
    shuffled = store(other)
    plan(shuffled, [0, 1])
    shuffled.take([refs(0, 1, 0)], [0, 1, 2, 3])
    assert other.counted == [0, 1]
    shuffled.close()


def test_one_by_one_and_together_count_the_same_errors(corpus: FakeCorpus) -> None:
    reads = [(0, 1), (1,), (2, 0), (2,), (3,), (3, 1)]
    for window_stays_in_use in (False, True):
        together, singly = FakeCorpus(), FakeCorpus()
        for recording, groups in ((together, [reads[:3], reads[3:]]), (singly, [[read] for read in reads])):
            chunks = store(recording, window_stays_in_use=window_stays_in_use)
            plan(chunks, [0, 1, 2])
            for group in groups:
                bounds = np.cumsum([0, *map(len, group)]).tolist()
                chunks.take([refs(*(chunk_id for read in group for chunk_id in read))], bounds)
            chunks.close()
        assert together.counted == singly.counted


@pytest.mark.parametrize("sizes", [[1] * 8, [8], [4, 4], [1, 2, 5], [3, 1, 4], [2, 6]])
@pytest.mark.parametrize("window_stays_in_use", [False, True])
def test_a_minibatch_without_sequences_releases_no_chunk(sizes: list[int], window_stays_in_use: bool) -> None:
    reads: list[tuple[int, ...]] = [(), (0,), (), (0,), (0, 1), (), (1,), (0,)]
    first, second = FakeCorpus(2), FakeCorpus(2)
    chunks = store(first, second, window_stays_in_use=window_stays_in_use)
    plan(chunks, [0, 1])
    for begin, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        group = reads[begin : begin + size]
        needed = refs(*(chunk_id for read in group for chunk_id in read))
        assert chunks.take([needed, needed], np.cumsum([0, *map(len, group)]).tolist()).error is None
    chunks.close()
    assert first.counted == second.counted == ([0, 1] if window_stays_in_use else [0, 1, 0])


def test_errors_of_joined_corpora_count_minibatch_by_minibatch() -> None:
    first, second = FakeCorpus(4), FakeCorpus(4)
    chunks = store(first, second)
    plan(chunks, [0, 1, 2, 3])
    first.bad, second.bad = {2}, {1}
    taken = chunks.take([refs(0, 1, 2), refs(0, 1, 3)], [0, 0, 1, 2, 3])
    assert (taken.num_sound, str(taken.error)) == (2, "chunk 1 is bad")  # of the second corpus
    assert (first.counted, second.counted) == ([0, 1], [0, 1])
    second.bad = set()
    taken = chunks.take([refs(0, 1, 2), refs(0, 1, 3)], [0, 1, 2, 3])
    assert (taken.num_sound, str(taken.error)) == (2, "chunk 2 is bad")
    assert (first.counted, second.counted) == ([0, 1, 2], [0, 1, 1])
    assert [len(of_corpus) for of_corpus in taken.chunks] == [2, 2]
    chunks.close()


def test_an_unreadable_chunk_raises_only_in_the_read_that_needs_it(corpus: FakeCorpus) -> None:
    corpus.unreadable = {1}
    chunks = store(corpus, read_ahead_in_bytes=100 << 20)
    plan(chunks, [0])
    assert chunks.take([refs(0)], [0, 1]).error is None
    plan(chunks, [0], [1, 2])
    wait_until(lambda: 2 in corpus.loaded)
    plan(chunks, [0, 1])
    taken = chunks.take([refs(0, 1)], [0, 1, 2])
    assert taken.num_sound == 1 and isinstance(taken.error, OSError)
    corpus.unreadable = set()
    assert chunks.take([refs(1)], [0, 1]).error is None  # failed loads are tried again
    chunks.close()


def test_errors_of_the_whole_window_are_raised_at_once_if_requested(corpus: FakeCorpus) -> None:
    corpus.unreadable = {5}
    chunks = store(corpus, loads_window=True)
    plan(chunks, [0, 5])
    assert isinstance(chunks.take([refs(0)], [0, 1]).error, OSError)
    chunks.close()


def test_all_chunks_stay_in_memory_if_requested(corpus: FakeCorpus) -> None:
    chunks = store(corpus, keeps_all=True)
    for chunk_id in (0, 1, 2, 0):
        plan(chunks, [chunk_id])
        chunks.take([refs(chunk_id)], [0, 1])
    chunks.close()
    assert sorted(corpus.loaded) == sorted(corpus.counted) == sorted(chunks.in_memory(0)) == [0, 1, 2]


def test_partners_of_a_joined_corpus_are_loaded_with_their_chunk() -> None:
    first, second = FakeCorpus(4), FakeCorpus(4, keys=[3, 2, 1, 0])
    chunks = store(first, second)
    plan(chunks, [0, 1])
    taken = chunks.take([refs(0, 1), refs(3, 2)], [0, 1, 2])
    assert [[chunk.chunk_id for chunk in of_corpus] for of_corpus in taken.chunks] == [[0, 1], [3, 2]]  # type: ignore[attr-defined]
    chunks.close()
    assert sorted(second.loaded) == [2, 3]


def test_more_is_read_ahead_after_a_chunk_came_late() -> None:
    corpus = FakeCorpus(20, num_bytes=20 << 20)
    chunks = store(corpus, read_ahead_in_bytes=100 << 20)
    plan(chunks, [0])
    chunks.take([refs(0)], [0, 1])
    plan(chunks, [0], range(1, 20))
    wait_until(lambda: len(corpus.loaded) == 2)  # 32 MB ahead at first
    corpus.gate.clear()
    plan(chunks, [1, 2], range(3, 20))
    wait_until(lambda: {2, 3} <= set(corpus.loaded))
    opener = threading.Timer(0.05, corpus.gate.set)
    opener.start()
    chunks.take([refs(2)], [0, 1])
    opener.join()
    plan(chunks, [2], range(3, 20))
    wait_until(lambda: {3, 4, 5} <= set(corpus.loaded))
    chunks.close()


def test_a_child_process_loads_for_itself(corpus: FakeCorpus) -> None:
    chunks = store(corpus, read_ahead_in_bytes=100 << 20)
    corpus.gate.clear()
    plan(chunks, [0], [1])
    wait_until(lambda: len(corpus.loaded) == 2)
    chunks.begin_in_child()  # as if the two threads did not exist
    corpus.gate.set()
    plan(chunks, [0])
    assert chunks.take([refs(0)], [0, 1]).error is None
    chunks.close()


def test_keys_without_partners_are_refused() -> None:
    with pytest.raises(CorpusError, match="no key is in all"):
        store(FakeCorpus(2), FakeCorpus(2, keys=[8, 9]))

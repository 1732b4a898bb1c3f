"""`Sequences` of every format: `sequences[i]` is sequence `i` of a sweep, in any order, thread and process."""

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CheckpointError,
    CntkIoError,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    Sequences,
)
from cntkio.formats import htk
from cntkio.formats.contract import OPENING, Corpus, Opening
from cntkio.formats.corpus import as_deserializer
from support.forks import in_a_fork
from support.small_corpora import FORMATS, KEYS, XY, joined_texts, lines, speech, text
from support.threads import together
from support.user_formats import Named


class SmallParts:
    """A deserializer whose chunks have parts of few bytes, so that small corpora have several. Counts what is loaded.

    Attributes:
        loaded: The number of sequences of each load.
    """

    def __init__(self, inner: Any, part_in_bytes: int = 40) -> None:
        self.inner, self.part_in_bytes = as_deserializer(inner), part_in_bytes
        self.has_text_keys, self.loaded = self.inner.has_text_keys, list[int]()

    def parts(self) -> Sequence["SmallParts"]:
        return [self] if len(own := self.inner.parts()) == 1 else [SmallParts(part) for part in own]

    def open(self, opening: Opening = OPENING) -> Corpus:
        corpus = self.inner.open(opening)
        corpus.index = corpus.index._replace(part_in_bytes=corpus.index.part_in_bytes and self.part_in_bytes)
        load = corpus.load

        def counted(chunk_id: int, sequences: Any = None) -> Any:
            loaded = load(chunk_id, sequences)
            self.loaded.append(loaded.chunk.num_sequences)
            return loaded

        corpus.load = counted  # type: ignore[method-assign]
        return corpus


@pytest.fixture(autouse=True)
def small_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(htk.corpus, "CHUNK_FRAMES", 8)


def in_small_parts(deserializers: Any) -> list[SmallParts]:
    listed = deserializers if isinstance(deserializers, list) else [deserializers]
    return [SmallParts(deserializer) for deserializer in listed]


def plain(sequence: dict[str, Any]) -> dict[str, Any]:
    return {name: (samples.tolist(), str(samples.dtype)) for name, samples in sequence.items()}


def sweep(deserializers: Any) -> list[dict[str, Any]]:
    """Return each sequence of a sweep in order."""
    with MinibatchSource(deserializers, randomize=False, max_sweeps=1) as source:
        read = list(source.minibatches(1))
    assert all(minibatch.num_sequences == 1 for minibatch in read)
    return [plain({name: data.asarray()[0] for name, data in minibatch.items()}) for minibatch in read]


def some_orders(count: int) -> list[list[int]]:
    random = np.random.default_rng(1)
    return [[*range(count)], [*reversed(range(count))], random.permutation(count).tolist(), [count - 1, 0, -1, 0]]


def each(sequences: Sequences, order: Sequence[int]) -> list[dict[str, Any]]:
    return [plain(sequences[index]) for index in order]


@pytest.mark.parametrize("cache_in_bytes", [0, 150, 1 << 20])
@pytest.mark.parametrize("name", FORMATS)
def test_a_sequence_is_that_of_a_sweep_in_any_order(name: str, cache_in_bytes: int) -> None:
    expected = sweep(FORMATS[name]())
    with Sequences(in_small_parts(FORMATS[name]()), cache_in_bytes=cache_in_bytes) as sequences:
        assert len(sequences) == len(expected) == len(sequences.keys) == len(sequences.lengths)
        for order in some_orders(len(expected)):
            wanted = [expected[index] for index in order]
            assert each(sequences, order) == wanted
            assert [*map(plain, sequences.__getitems__(order))] == wanted
            minibatch, keys = sequences[order], sequences.keys
            assert minibatch.keys_of_sequences.tolist() == [keys[index] for index in order]
            lists = {
                stream: [data.asarray()[at, :length] for at, length in enumerate(data.lengths)]
                for stream, data in minibatch.items()
            }
            assert [plain(dict(zip(lists, own, strict=True))) for own in zip(*lists.values(), strict=True)] == wanted
        assert [sequences.index_of(key) for key in sequences.keys] == [*range(len(expected))]
        assert not sequences[[]].num_sequences and sequences.__getitems__([]) == []


@pytest.mark.parametrize("name", FORMATS)
def test_threads_forks_and_pickles_read_the_same_sequences(name: str) -> None:
    expected = sweep(FORMATS[name]())
    order = some_orders(len(expected))[2]
    wanted = [expected[index] for index in order]
    with Sequences(FORMATS[name](), cache_in_bytes=200) as sequences:
        copy = sequences if "memory" in name or name == "format in Python" else pickle.loads(pickle.dumps(sequences))
        assert each(copy, order) == wanted

        def work(number: int) -> list[dict[str, Any]]:
            read = each(sequences, order[number:] + order[:number])
            sequences[order]
            return read

        for number, read in enumerate(together(3, work)):
            assert read == wanted[number:] + wanted[:number]
        assert in_a_fork(lambda: (each(sequences, order), sequences[order] and None)) == repr((wanted, None))


def test_one_sequence_of_a_large_chunk_loads_a_part_of_it() -> None:
    """The part does not grow with the corpus."""
    for num_sequences in (1000, 2000):
        Path("a.ctf").write_text("".join(f"{key} |x {key % 10} {key % 10} |y 1:1\n" for key in range(num_sequences)))
        corpus = SmallParts(CTFDeserializer("a.ctf", XY), part_in_bytes=400)
        with Sequences(corpus) as sequences:
            assert sequences[num_sequences // 2]["x"].tolist() == [[0, 0]]
            assert len(corpus.loaded) == 1 and 1 < corpus.loaded[0] < 40
            sequences[num_sequences // 2 : num_sequences // 2 + 3]
            assert len(corpus.loaded) <= 2


def test_the_cache_keeps_the_parts_that_were_used_last() -> None:
    Path("a.ctf").write_text("".join(f"{key} |x {key} 0 |y 1:1\n" for key in range(1000)))
    corpus = SmallParts(CTFDeserializer("a.ctf", XY), part_in_bytes=1000)

    def num_loads(cache_in_bytes: int, indices: Sequence[int]) -> int:
        with Sequences(corpus, cache_in_bytes=cache_in_bytes) as sequences:
            corpus.loaded.clear()
            for index in indices:
                sequences[index]
            return len(corpus.loaded)

    assert [num_loads(size, (0, 0, 999, 0, 500, 0, 999)) for size in (0, 5000, 1 << 20)] == [7, 3, 3]
    two_sweeps = [*range(0, 1000, 10)] * 2
    few, more, most = (num_loads(size, two_sweeps) for size in (1 << 20, 5000, 0))
    assert few < 40 and more == 2 * few and most == 200


def test_an_index_is_that_of_a_list() -> None:
    with Sequences(text()) as sequences:
        listed = each(sequences, range(len(KEYS)))
        assert plain(sequences[-1]) == listed[-1] == plain(sequences[np.int64(11)]) == plain(sequences[np.array(-1)])
        for index in (slice(2, 5), slice(None, None, -1), slice(50, 60), range(3), (1, 2), np.array([4, 4], np.uint8)):
            places = [*range(len(KEYS))][index] if isinstance(index, slice) else list(index)
            assert sequences[index].keys_of_sequences.tolist() == [KEYS[place] for place in places]
        assert [plain(sequence) for sequence in sequences] == listed
        for beyond in (12, -13, [0, 12], [-13]):
            with pytest.raises(IndexError, match=r"a.ctf: index -?1\d is out of range; expected -12 to 11"):
                sequences[beyond]
        for other in ("x", None, 1.0, [1.5], ["x"], [[0]], [True], [0, [1]], 2**70 * 1.0):
            with pytest.raises(TypeError, match="expected a whole number, a slice, or a list"):
                sequences[other]


def test_an_unknown_key_is_a_key_error_that_shows_keys() -> None:
    with Sequences(text()) as sequences:
        for key in (7, -1, "u1", None, 2**65):
            with pytest.raises(KeyError, match=r"a.ctf: no sequence has the key .*; the keys are 3, 1, .*, \.\.\."):
                sequences.index_of(key)  # type: ignore[arg-type]
    with Sequences(speech()) as sequences:
        assert sequences.index_of("u15") == 3 == sequences.index_of(sequences.keys[3])
        with pytest.raises(KeyError, match="the keys are u3, u1, u4"):
            sequences.index_of("u7")


def test_the_errors_of_a_sequence_are_its_own() -> None:
    """Whatever is kept, and whichever part has the sequence: its neighbors are read, and its error counts once."""
    bad = {4: "4 |x 1 1 |y 9:1\n", 6: "6 |x 1 a |y 1:1\n", 8: "8 |x 1 1 |y 7:1\n"}
    Path("a.ctf").write_text("".join(f"{key} |x {key} 0 |y 1:1\n" + bad.get(key, "") for key in KEYS))
    for part_in_bytes in (1, 60, 1 << 20):
        for cache_in_bytes in (0, 1 << 20):
            corpus = SmallParts(CTFDeserializer("a.ctf", XY, max_errors=2), part_in_bytes=part_in_bytes)
            with Sequences(corpus, cache_in_bytes=cache_in_bytes) as sequences:
                for _ in range(2):
                    assert sequences[KEYS.index(1)]["x"].tolist() == [[1, 0]]
                    sequences[[KEYS.index(4), KEYS.index(2)]]
                    sequences[KEYS.index(6)]
                with pytest.raises(FormatError, match=r"a\.ctf, line 13.*sequence 8.*error 3, and max_errors is 2"):
                    sequences[[0, KEYS.index(8)]]
                with pytest.raises(FormatError, match=r"a\.ctf, line 13"):
                    sequences[KEYS.index(8)]
                assert sequences[KEYS.index(97)]["x"].tolist() == [[97, 0]]


def test_invalid_utterances_are_left_out_up_to_max_errors() -> None:
    deserializers = speech()
    Path("a.mlf").write_text(Path("a.mlf").read_text().replace('"u4"\n0 ', '"u4"\n50000 '))
    with pytest.raises(CorpusError, match=r"1 invalid utterance, and max_errors is 0: .*a.mlf, line"):
        Sequences(deserializers)
    with Sequences(deserializers, max_errors=1) as sequences:
        assert "u4" not in sequences.keys and len(sequences) == len(KEYS) - 1
        with MinibatchSource(deserializers, randomize=False, max_sweeps=1, max_errors=1) as source:
            read = [minibatch["F"].values.tolist() for minibatch in source.minibatches(1)]
        assert [sequence["F"].tolist() for sequence in sequences] == read
        assert sequences[[2, 3]].keys_of_sequences.tolist() == sequences.keys[2:4].tolist()


def test_classes_are_delivered_as_numbers_where_they_are_asked_for() -> None:
    with Sequences(text(), layout={"y": "ids"}) as sequences:
        assert sequences[4]["y"].tolist() == [4] and sequences[4]["y"].dtype == np.int32
        assert sequences[2]["x"].shape == (2, 2) and sequences[2]["y"].shape == (2,)
    with Sequences(text(), layout="ids") as sequences, pytest.raises(ConfigError, match=r"sequence 3, stream 'x'"):
        sequences[0]
    for layout in ("padded", {"z": "ids"}):
        with pytest.raises(ConfigError, match="layout"):
            Sequences(text(), layout=layout)  # type: ignore[arg-type]


def test_one_warm_sequence_takes_few_calls_of_python() -> None:
    calls = list[str]()
    with Sequences(text(), layout={"y": "ids"}) as sequences:
        sequences[4]
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
        try:
            sequences[4]
        finally:
            sys.setprofile(before)
    assert len(calls) <= 24, calls  # about one microsecond each; there were 41


def test_a_file_that_changes_is_an_error_at_the_next_read() -> None:
    sequences = Sequences(SmallParts(text()), cache_in_bytes=0)
    sequences[0]
    pickled = pickle.dumps(Sequences(text()))
    Path("a.ctf").write_text(lines([*KEYS[:-1], 94]))
    for index in (3, [1, 2, 9]):
        with pytest.raises(CorpusError, match=r"a\.ctf.*chang"):
            sequences[index]
    with pytest.raises(CheckpointError, match=r"a.ctf .* with other content"):
        pickle.loads(pickled)


def test_closed_sequences_and_unknown_orders_are_refused() -> None:
    sequences = Sequences(text())
    sequences.close()
    sequences.close()
    for index in (0, [0, 1]):
        with pytest.raises(CorpusError, match=r"the sequences of a\.ctf are closed"):
            sequences[index]
    with pytest.raises(ConfigError, match="timeline='global'"):
        Sequences(Named(timeline="local"))
    with pytest.raises(ConfigError, match="cache_in_bytes is -1"):
        Sequences(text(), cache_in_bytes=-1)
    with pytest.raises(CntkIoError, match="the list is empty"):
        Sequences([])


def test_a_repr_names_the_corpus_and_its_streams() -> None:
    with Sequences(joined_texts()) as sequences:
        shown = "Sequences of a.ctf and z.ctf: 11 sequences of 22 samples"
        assert repr(sequences).splitlines()[0] == shown
        assert [info.name for info in sequences.streams.values()] == ["x", "y", "z"]
        assert sequences.left_out == [1, 0]
    assert repr(sequences) == repr(sequences)

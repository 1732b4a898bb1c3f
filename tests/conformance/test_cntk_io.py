"""The behaviour that the reader tests of CNTK 2.7 cover, with one or more tests of our own for each of them.

The names of `cntk.cntk_py` come from the stand-in `cntk_shim`; the names of `cntk.io` are cntkio's own.
"""

import gc
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cntkio import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    CBFDeserializer,
    CTFDeserializer,
    HTKMLFDeserializer,
    MinibatchData,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    StreamInformation,
    TraceLevel,
    UserDeserializer,
    UserMinibatchSource,
    Value,
    sequence_to_cntk_text_format,
)
from support import cntk_shim
from support.cntk_shim import MinibatchSourceConfig, to_dictionary

# Sequences of words, each with one class: 4, 2 and 3 words.
WORDS = (
    "10 |w 17:1 |c 0 0 1\n10 |w 3:1\n10 |w 255:1\n10 |w 3:1\n"
    "11 |w 9:1 |c 1 0 0\n11 |w 8:1\n"
    "12 |w 7:1 |c 0 1 0\n12 |w 6:1\n12 |w 5:1\n"
)
WORDS_ONLY = "\n".join(line.partition(" |c")[0] for line in WORDS.splitlines()) + "\n"
CLASSES_ONLY = "10 |c 0 0 1\n11 |c 1 0 0\n12 |c 0 1 0\n"
WORD = StreamDef(field="w", shape=256, is_sparse=True)
CLASS = StreamDef(field="c", shape=3)
# Two streams of unequal length: 3 and 2 samples, then 2 and 1.
PAIRS = "0 |a 5 |b 50\n0 |a 6 |b 60\n0 |a 7\n1 |a 8 |b 80\n1 |a 9\n"
PAIR = StreamDefs(first=StreamDef(field="a", shape=1), second=StreamDef(field="b", shape=1))


def write(folder: Path, text: str, name: str = "a.ctf") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.fixture
def four(tmp_path: Path) -> CTFDeserializer:
    """Four sequences of one sample each."""
    return CTFDeserializer(write(tmp_path, "|v 11\n|v 12\n|v 13\n|v 14\n"), StreamDefs(v=StreamDef("v", 1)))


def counts(source: MinibatchSource, size: int, most: int = 100) -> list[tuple[int, bool]]:
    """Samples of each minibatch and its flag, to the end."""
    found = []
    for _ in range(most):
        minibatch = source.next_minibatch(size, {"v": source["v"]})
        if not minibatch:
            return found
        found.append((minibatch["v"].num_samples, minibatch["v"].end_of_sweep))
    raise AssertionError("the data do not end")


# ------------------------------------------------------------------------------------------------------- text


def test_sparse_streams_and_dense_streams_per_sequence_are_read_in_order(tmp_path: Path) -> None:
    corpus = CTFDeserializer(write(tmp_path, WORDS), StreamDefs(word=WORD, kind=CLASS))
    source = MinibatchSource(corpus, randomize=False)
    word, kind = source.stream_info("word"), source.stream_info("kind")
    minibatch = source.next_minibatch(9)
    words, kinds = minibatch[word], minibatch[kind]
    assert (words.shape, words.num_sequences, words.num_samples) == ((3, 4, 256), 3, 9)
    assert (kinds.shape, kinds.num_sequences, kinds.num_samples) == ((3, 1, 3), 3, 3)
    assert (words.is_sparse, kinds.is_sparse, words.end_of_sweep, kinds.end_of_sweep) == (True, False, True, True)
    assert kinds.asarray().tolist() == [[[0, 0, 1]], [[1, 0, 0]], [[0, 1, 0]]]
    after = source.next_minibatch(2)
    assert (after[word].num_samples, after[kind].num_samples) == (
        4,
        1,
    )  # longer than the requested size: it comes alone
    assert not after[word].end_of_sweep and not after[kind].end_of_sweep


def test_a_full_sweep_gives_the_sequences_and_the_masks_of_two_streams(tmp_path: Path) -> None:
    corpus = CTFDeserializer(write(tmp_path, PAIRS), PAIR)
    source = MinibatchSource(corpus, randomization_window_in_chunks=0, max_sweeps=1)
    minibatch = source.next_minibatch(500)
    first, second = minibatch[source["first"]], minibatch[source["second"]]
    assert [one.ravel().tolist() for one in first.as_sequences()] == [[5, 6, 7], [8, 9]]
    assert [one.ravel().tolist() for one in second.as_sequences()] == [[50, 60], [80]]
    assert first.data.mask.tolist() == [[2, 1, 1], [2, 1, 0]]
    assert second.data.mask.tolist() == [[2, 1], [2, 0]]
    assert first.end_of_sweep and second.end_of_sweep and len(first) == len(second) == 2
    assert source.next_minibatch(500) == {}


def test_a_minibatch_of_a_thousand_samples_spans_many_sweeps(tmp_path: Path) -> None:
    source = MinibatchSource(CTFDeserializer(write(tmp_path, PAIRS), PAIR), randomization_window_in_chunks=0)
    minibatch = source.next_minibatch(1003)
    first, second = minibatch[source["first"]], minibatch[source["second"]]
    assert first.num_samples == 1003  # 200 sweeps of 5, and the first sequence
    assert (first.num_sequences, second.num_sequences) == (401, 401)
    assert second.num_samples == 200 * 3 + 2
    assert first.end_of_sweep and second.end_of_sweep


# ----------------------------------------------------------------------------------------------- configuration


def default_keys(made: dict[str, Any]) -> bool:
    return (
        made["frameMode"] is False
        and made["multiThreadedDeserialization"] is False
        and made["traceLevel"] == TraceLevel.Warning
        and {"randomize", "deserializers"} <= set(made)
    )


def test_a_configuration_has_keys_with_and_without_randomization(four: CTFDeserializer) -> None:
    plain = to_dictionary(MinibatchSourceConfig([four], False))
    assert default_keys(plain) and len(plain) == 5 and plain["randomize"] is False
    for config in (MinibatchSourceConfig([four], True), MinibatchSourceConfig([four])):
        made = to_dictionary(config)
        assert default_keys(made) and len(made) == 8 and made["randomize"] is True
        assert made["randomizationWindow"] == DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS
        assert made["sampleBasedRandomizationWindow"] is False and made["randomizationSeed"] == 0


def test_a_configuration_with_both_limits_is_refused(four: CTFDeserializer) -> None:
    config = MinibatchSourceConfig([four])
    assert config.max_samples == config.max_sweeps == INFINITELY_REPEAT
    config.max_samples, config.max_sweeps = 40, 2
    with pytest.raises(RuntimeError, match="exclude each other"):
        to_dictionary(config)
    config.max_samples = INFINITELY_REPEAT
    assert default_keys(to_dictionary(config))


def test_a_configuration_has_one_window_of_either_kind(four: CTFDeserializer) -> None:
    config = MinibatchSourceConfig([four])
    config.randomization_window_in_chunks = 0
    assert to_dictionary(config)["randomize"] is False
    config.randomization_window_in_chunks = 7
    made = to_dictionary(config)
    assert (made["randomizationWindow"], made["sampleBasedRandomizationWindow"]) == (7, False)
    config.randomization_window_in_samples = 90
    with pytest.raises(RuntimeError, match="exclude each"):
        to_dictionary(config)
    config.randomization_window_in_chunks = 0
    made = to_dictionary(config)
    assert (made["randomizationWindow"], made["sampleBasedRandomizationWindow"]) == (90, True)


def test_a_configuration_keeps_threads_trace_level_frame_mode_and_truncation(four: CTFDeserializer) -> None:
    config = MinibatchSourceConfig([four])
    config.is_multithreaded.set(True)
    config.trace_level = TraceLevel.Info
    config.is_frame_mode_enabled = True
    made = to_dictionary(config)
    assert made["multiThreadedDeserialization"] is True and made["frameMode"] is True
    assert (made["traceLevel"], len(made)) == (2, 8)
    config.is_multithreaded.set(False)
    config.trace_level = 0
    config.truncation_length = 12
    with pytest.raises(RuntimeError, match="exclude each other"):
        to_dictionary(config)
    config.is_frame_mode_enabled = False
    config.max_errors = 3
    made = to_dictionary(config)
    assert (made["truncated"], made["truncationLength"], made["traceLevel"], made["maxErrors"]) == (True, 12, 0, 3)
    assert made["frameMode"] is False and made["multiThreadedDeserialization"] is False and len(made) == 11


# ------------------------------------------------------------------------------------------------------ limits


def test_one_sample_of_four_is_one_minibatch_and_then_nothing(four: CTFDeserializer) -> None:
    source = MinibatchSource(four, max_samples=1)
    minibatch = source.next_minibatch(50, input_map={"v": source["v"]})
    assert list(minibatch) == ["v"] and minibatch["v"].num_samples == 1 and not minibatch["v"].end_of_sweep
    assert source.next_minibatch(50) == {} == source.next_minibatch(50)


def test_three_sweeps_of_four_come_in_minibatches_of_five(four: CTFDeserializer) -> None:
    assert counts(MinibatchSource(four, max_sweeps=3), 5) == [(5, True), (5, True), (2, True)]


def test_eleven_samples_of_four_end_without_the_flag(four: CTFDeserializer) -> None:
    assert counts(MinibatchSource(four, max_samples=11), 5) == [(5, True), (5, True), (1, False)]


@pytest.mark.parametrize(
    "limit", [{"max_samples": 4}, {"max_samples": FULL_DATA_SWEEP}, {"max_sweeps": 1},
              {"max_samples": MinibatchSource.full_data_sweep}],
)  # fmt: skip
def test_one_sweep_can_be_asked_for_in_four_ways(four: CTFDeserializer, limit: dict[str, int]) -> None:
    assert counts(MinibatchSource(four, **limit), 100) == [(4, True)]


def test_a_sweep_is_shuffled_with_the_seed_and_its_number(four: CTFDeserializer) -> None:
    def values(**seed: int) -> list[float]:
        source = MinibatchSource(four, **seed)
        read = source.next_minibatch(100, {"v": source["v"]})["v"]
        assert read.end_of_sweep and read.num_samples == 100
        return read.asarray().ravel().tolist()

    assert values() == values(randomization_seed=0)
    assert values() != values(randomization_seed=123)
    assert values()[4:] == values(randomization_seed=1)[:-4]


def test_phone_boundaries_are_an_item_of_the_deserializer() -> None:
    labels = HTKMLFDeserializer(None, StreamDefs(y=StreamDef(mlf="a.mlf", shape=3)))
    labels["phoneBoundaries"] = "true"
    assert labels["phoneBoundaries"] is labels.phoneBoundaries is True


def test_no_stream_is_binary() -> None:
    assert StreamInformation("x", 0, "dense", np.float32, (2,)).m_is_binary is False


# ------------------------------------------------------------------------------------------- sequences to text


def test_refuses_to_write_values_that_are_not_numbers() -> None:
    with pytest.raises(ValueError, match="expected numbers"):
        sequence_to_cntk_text_format(0, {"a": [object()]})


@pytest.mark.parametrize(
    ("tensors", "lines"),
    [
        ({"a": np.array([])}, []),
        ({"a": np.array([[[3, 4], [5, 6]]])}, ["8\t|a 3 4 5 6"]),
        ({"b": np.array([[[3, 4]]]), "a": np.array([[[7]]])}, ["8\t|a 7 |b 3 4"]),
        ({"b": np.array([[[3, 4]], [[5, 6]]]), "a": np.array([[[7]]])}, ["8\t|a 7 |b 3 4", "8\t|b 5 6"]),
        ({"b": [{4: 1, 2: 7}, {0: 1}], "a": [[7]]}, ["8\t|a 7 |b 2:7 4:1", "8\t|b 0:1"]),
    ],
)
def test_sequences_become_lines_with_the_inputs_sorted_by_name(tensors: dict[str, Any], lines: list[str]) -> None:
    assert sequence_to_cntk_text_format(8, tensors) == "\n".join(lines)


@pytest.mark.parametrize(
    ("data", "expected"),
    [([2], True), ([[2, 3], [4, 5]], True), (np.ones(2), True), ([np.array([2, 3])], False), ([{2: 1}], False)],
)
def test_lists_of_numbers_and_arrays_are_tensors(data: Any, expected: bool) -> None:
    assert cntk_shim.is_tensor(data) is expected


# ------------------------------------------------------------------------------------- sources written in Python


class WordSource(UserMinibatchSource):
    """The corpus `WORDS` in the program itself, a sequence at a time, in order."""

    def __init__(self) -> None:
        self.word = StreamInformation("word", 0, "sparse", np.float32, (256,))
        self.kind = StreamInformation("kind", 1, "dense", np.float32, (3,))
        self._words = [[17, 3, 255, 3], [9, 8], [7, 6, 5]]
        self._classes = [2, 0, 1]
        self._next = 0
        super().__init__()

    def stream_infos(self) -> list[StreamInformation]:
        return [self.word, self.kind]

    def next_minibatch(
        self, num_samples: int, number_of_workers: int = 1, worker_rank: int = 0, device: object = None
    ) -> dict[Any, Any]:
        words: list[list[int]] = []
        kinds: list[Any] = []
        ended = False
        while sum(map(len, words)) < num_samples:
            if words and sum(map(len, words)) + len(self._words[self._next]) > num_samples:
                break
            words.append(self._words[self._next])
            kinds.append(np.eye(3, dtype=np.float32)[[self._classes[self._next]]])
            self._next = (self._next + 1) % 3
            ended |= self._next == 0
        count = sum(map(len, words))
        return {
            self.word: MinibatchData(Value.one_hot(batch=words, num_classes=256), len(words), count, ended),
            self.kind: MinibatchData(Value(batch=np.asarray(kinds)), len(kinds), len(kinds), ended),
        }


def test_a_source_written_in_python_delivers_the_same_as_the_text(tmp_path: Path) -> None:
    text = CTFDeserializer(write(tmp_path, WORDS), StreamDefs(word=WORD, kind=CLASS))
    native, own = MinibatchSource(text, randomize=False), WordSource()
    assert own.streams.word is own.word and own["kind"] == own.stream_info("kind")
    for size in (2, 5, 9):
        expected, found = native.next_minibatch(size), own.next_minibatch(size, 1, 0)
        for name in ("word", "kind"):
            one, other = expected[native[name]], found[own[name]]
            assert (one.shape, one.is_sparse, len(one)) == (other.shape, other.is_sparse, len(other))
            assert (one.num_samples, one.end_of_sweep) == (other.num_samples, other.end_of_sweep)
            assert np.array_equal(one.asarray(), other.asarray())


def test_a_source_written_in_python_has_no_checkpoint_by_default() -> None:
    source = WordSource()
    assert source.get_checkpoint_state() == {} and source.is_infinite() is False
    source.restore_from_checkpoint(state={})
    with pytest.raises(NotImplementedError):
        source.restore_from_checkpoint({"cursor": 1})


def test_a_value_is_checked_against_its_stream() -> None:
    with pytest.raises(ValueError, match="num_samples is 4, but the value has 2 sequences and 3 samples"):
        MinibatchData(Value([[[1.0]], [[2.0], [3.0]]]), 2, 4, False)
    with pytest.raises(ValueError, match=r"class 5; expected 0 to 4"):
        Value.one_hot([[5]], 5)
    skipped = Value.one_hot([[1, Value.ONE_HOT_SKIP]], 2)
    assert skipped.asarray().tolist() == [[[0, 1], [0, 0]]]
    matrices = Value([sp.csr_matrix(np.eye(2, 3)), sp.csr_matrix(np.ones((1, 3)))])
    assert (matrices.shape, matrices.masked_count()) == ((2, 2, 3), 1)
    assert MinibatchData(value=matrices, num_sequences=2, num_samples=3, sweep_end=True).sweep_end


# ---------------------------------------------------------------------------------------- who defines the size


@pytest.mark.parametrize("num_files", [1, 2])
def test_only_the_stream_that_defines_the_size_counts(tmp_path: Path, num_files: int) -> None:
    kind = StreamDef(field="c", shape=3, defines_mb_size=True)
    if num_files == 1:
        corpora = [CTFDeserializer(write(tmp_path, WORDS), StreamDefs(word=WORD, kind=kind))]
    else:
        corpora = [
            CTFDeserializer(write(tmp_path, WORDS_ONLY, "w"), StreamDefs(word=WORD)),
            CTFDeserializer(write(tmp_path, CLASSES_ONLY, "c"), StreamDefs(kind=kind)),
        ]
    source = MinibatchSource(corpora, randomize=False)
    seen = []
    for size in (2, 4):
        minibatch = source.next_minibatch(size)
        word, kinds = minibatch[source["word"]], minibatch[source["kind"]]
        seen.append((word.num_samples, kinds.num_samples, kinds.asarray().argmax(axis=-1).ravel().tolist()))
        assert word.num_sequences == size
    assert seen == [(6, 2, [2, 0]), (3 + 4 + 2 + 3, 4, [1, 2, 0, 1])]


def test_values_stay_right_while_the_next_minibatch_is_fetched(tmp_path: Path) -> None:
    text = "".join(f"{key} |a {key} {key} |b {10 * key}\n" for key in range(1, 11))
    streams = StreamDefs(a=StreamDef(field="a", shape=2), b=StreamDef(field="b", shape=1))
    source = MinibatchSource(CTFDeserializer(write(tmp_path, text), streams), randomize=False, max_sweeps=1)
    wanted = {"one": source.streams.a, 2: source.streams.b}
    held = []
    while minibatch := source.next_minibatch(4, input_map=wanted):
        held.append(minibatch)
        time.sleep(0.02)  # the next minibatch is made at the same time
    for number, minibatch in enumerate(held):  # CNTK's values would be empty by now
        keys = np.arange(4 * number + 1, min(4 * number + 5, 11), dtype=np.float32)
        assert minibatch["one"].asarray()[:, 0, 1].tolist() == keys.tolist()
        assert minibatch[2].asarray().ravel().tolist() == (10 * keys).tolist()
    assert len(held) == 3


# -------------------------------------------------------------------------------------------- binary and text

CORPORA = {
    "pairs": (PAIRS, PAIR),
    "words": (WORDS, StreamDefs(word=WORD, kind=CLASS)),
    "words only": (WORDS_ONLY, StreamDefs(word=WORD)),
    "classes only": (CLASSES_ONLY, StreamDefs(kind=CLASS)),
}


@pytest.mark.parametrize("randomize", [False, True])
@pytest.mark.parametrize("corpus", CORPORA)
def test_a_binary_corpus_reads_as_the_text_it_was_made_of(tmp_path: Path, corpus: str, randomize: bool) -> None:
    text, streams = CORPORA[corpus]
    path = write(tmp_path, text)
    header = [f"{k} {v.stream_alias} {'sparse' if v.is_sparse else 'dense'} {v.dim}" for k, v in streams.items()]
    cntk_shim.ctf2bin_process(path, path + ".bin", header, cntk_shim.ElementType.FLOAT)
    for size, num_reads in ((1, 2), (10, 1), (100, 3), (2, 10)):
        ctf = MinibatchSource(CTFDeserializer(path, streams), randomize=randomize)
        cbf = MinibatchSource(CBFDeserializer(path + ".bin", streams), randomize=randomize)
        assert {info.m_name for info in ctf.stream_infos()} == {info.m_name for info in cbf.stream_infos()}
        for _ in range(num_reads):
            from_text, from_binary = ctf.next_minibatch(size), cbf.next_minibatch(size)
            for name in streams:
                one, other = from_text[ctf[name]], from_binary[cbf[name]]
                assert (one.shape, one.num_samples, one.num_sequences) == (
                    other.shape, other.num_samples, other.num_sequences
                )  # fmt: skip
                assert (one.end_of_sweep, one.is_sparse) == (other.end_of_sweep, other.is_sparse)
                assert one.data.masked_count() == other.data.masked_count() == (one.data.mask == 0).sum()
                assert cntk_shim.are_equal(one.data.data, other.data.data)
                assert np.array_equal(one.data.mask, other.data.mask)
                one.data.erase()  # nothing has to be released, so the call does nothing
                assert one.data.asarray().shape == one.shape


# ------------------------------------------------------------------------------- deserializers written in Python


class Chunks(UserDeserializer):
    """Chunks from a list, or from a function of the chunk's number, with a count of the chunks that were fetched."""

    def __init__(self, streams: list[StreamInformation], chunks: list[dict[str, Any]]) -> None:
        super().__init__()
        self._streams, self._chunks = streams, chunks

    def stream_infos(self) -> list[StreamInformation]:
        return self._streams

    def num_chunks(self) -> int:
        return len(self._chunks)

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        return self._chunks[chunk_id]


def two_streams(y_defines: bool, x_defines: bool = False) -> list[StreamInformation]:
    return [
        StreamInformation("x", 0, "dense", np.float32, (2,), x_defines),
        StreamInformation("y", 1, "dense", np.float32, (1,), y_defines),
    ]


def test_a_user_deserializer_counts_the_stream_that_defines_the_size() -> None:
    chunk = {
        "x": list(np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)),
        "y": list(np.arange(4, dtype=np.float32).reshape(4, 1, 1)),
    }
    source = MinibatchSource([Chunks(two_streams(y_defines=True), [chunk, chunk])], randomize=False)
    key = cntk_shim.Variable((2,), name="x")  # whatever can be a key
    batch = source.next_minibatch(4, {key: source["x"], "y": source["y"]})
    assert (batch[key].num_sequences, batch[key].number_of_samples, batch["y"].number_of_samples) == (4, 12, 4)

    source = MinibatchSource([Chunks(two_streams(y_defines=False), [chunk, chunk])], randomize=False)
    batch = source.next_minibatch(4, {key: source["x"], "y": source["y"]})
    assert (batch[key].number_of_sequences, batch[key].num_samples, batch["y"].num_samples) == (1, 3, 1)


def test_a_user_deserializer_with_two_streams_that_define_the_size_is_refused() -> None:
    chunk = {"x": np.ones((2, 2), np.float32), "y": np.ones((2, 1), np.float32)}
    with pytest.raises(RuntimeError, match="only a single stream"):
        MinibatchSource(Chunks(two_streams(True, True), [chunk]), randomize=False).next_minibatch(1)


def test_chunks_are_released_after_they_are_read() -> None:
    streams = [
        StreamInformation("x", 0, "dense", np.float32, (2, 3)),
        StreamInformation("y", 1, "sparse", np.float32, (3,)),
    ]
    chunks = [
        {"x": np.full((50, 2, 3), k, np.float32), "y": sp.csr_matrix(np.full((50, 3), k, np.float32))} for k in range(5)
    ]
    before = [[sys.getrefcount(one) for one in (chunk, chunk["x"], chunk["y"].data)] for chunk in chunks]
    with MinibatchSource(Chunks(streams, chunks), randomize=False, max_sweeps=2) as source:
        assert sum(minibatch["x"].num_samples for minibatch in source.minibatches(20)) == 500
    gc.collect()
    assert [[sys.getrefcount(one) for one in (chunk, chunk["x"], chunk["y"].data)] for chunk in chunks] == before


def made_chunks(num_chunks: int, num_sequences: int, longest: int) -> tuple[list[dict[str, Any]], Counter[int]]:
    """Chunks full of their own number: plain arrays of samples, or lists of sequences; and the samples of each."""
    generator = random.Random(5)
    chunks, samples = [], Counter[int]()
    for k in range(num_chunks):
        lengths = [generator.randint(1, longest) for _ in range(num_sequences)]
        samples[k] = sum(lengths)
        x = [np.full((length, 2, 3), k, np.float32) for length in lengths]
        y = [sp.csr_matrix(np.full((length, 3), k + 1, np.float32)) for length in lengths]
        is_plain = longest == 1
        chunks.append({"x": np.concatenate(x) if is_plain else x, "y": sp.csr_matrix(sp.vstack(y)) if is_plain else y})
    return chunks, samples


@pytest.mark.parametrize("randomize", [False, True])
@pytest.mark.parametrize("num_sequences", [1, 100])
@pytest.mark.parametrize("longest", [1, 10])
def test_every_sample_comes_once_a_sweep_across_checkpoints(longest: int, num_sequences: int, randomize: bool) -> None:
    streams = [
        StreamInformation("x", 0, "dense", np.float32, (2, 3)),
        StreamInformation("y", 1, "sparse", np.float32, (3,)),
    ]
    chunks, samples = made_chunks(6, num_sequences, longest)
    window = {"randomization_window_in_chunks": 5} if randomize else {}
    source = MinibatchSource(Chunks(streams, chunks), randomize=randomize, max_sweeps=2, **window)
    source.restore_from_checkpoint(source.get_checkpoint_state())
    seen_x, seen_y = Counter[int](), Counter[int]()
    for number in range(10_000):
        if number % 10 == 1:
            state = source.get_checkpoint_state()
            for _ in range(3):
                source.next_minibatch(20)
            source.restore_from_checkpoint(state)
        minibatch = source.next_minibatch(20)
        if not minibatch:
            break
        x, y = minibatch[source.streams.x], minibatch[source.streams.y]
        for sequence in x.as_sequences():
            seen_x.update(sequence[:, 0, 0].astype(int).tolist())
        for matrix in y.as_sequences(cntk_shim.Variable((3,), True)):
            seen_y.update((matrix.toarray()[:, 0].astype(int) - 1).tolist())
    assert seen_x == seen_y == Counter({k: 2 * count for k, count in samples.items()})


def test_the_substitute_tells_tensors_as_cntks_tests_expect() -> None:
    is_tensor = vars(sys.modules["cntk.io"])["_is_tensor"]
    assert [is_tensor(data) for data in ([1], [[1, 2]], [np.ones(2)], [[np.ones(2)]])] == [True, True, False, False]

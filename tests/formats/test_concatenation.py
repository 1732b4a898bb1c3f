"""Several files as one corpus: the same minibatches as from one file, and faults of some of the files."""

import gzip
import json
import os
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CheckpointError,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    write_cbf,
)
from cntkio.formats import corpus as file_corpus
from cntkio.formats import htk, mlf
from cntkio.formats.contract import Ahead, Opening
from cntkio.formats.corpus import differences_of_files
from cntkio.formats.ctf import corpus as ctf_corpus
from cntkio.formats.table import Keys
from cntkio.minibatch import Minibatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from support.builders import STREAMS, rest, shown
from support.rounds import rounds

WIDTH = 120
properties = settings(max_examples=rounds(60), suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Corpus:
    """A corpus as a single file, and as several files that each end where a chunk of the single file ends.

    Attributes:
        whole: The only file.
        pattern: The pattern of the others.
        chunk_size: Bytes of a chunk.
    """

    whole: Path
    pattern: str
    chunk_size: int

    def sources(self, cut: Any = None, keep: bool = False, **options: Any) -> list[MinibatchSource]:
        return [
            MinibatchSource(
                CTFDeserializer(path, STREAMS, chunk_size_in_bytes=self.chunk_size, max_errors=100, cache_index=keep),
                **options,
            )
            for path in (self.whole, self.pattern)
        ]


def sequence_text(key: int | None, length: int, *, is_broken: bool) -> bytes:
    """Return a sequence of `WIDTH` bytes."""
    head = b"" if key is None else b"%d " % key
    lines = [head + b"|x %d %d |s %d:%d" % (length, step, step, step) for step in range(length)]
    if is_broken:
        lines[-1] += b" |x 1 zwei"
    text = b"\n".join(lines)
    return text + b" " * (WIDTH - 1 - len(text)) + b"\n"


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """Draw the texts of files, and the size of a chunk."""
    in_chunk = draw(st.integers(1, 4))
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    totals = [count * in_chunk for count in counts] + [draw(st.integers(1, 9))]
    has_ids = draw(st.booleans())
    order = random.Random(draw(st.integers(0, 99)))
    keys = order.sample(range(1000), sum(totals))
    lengths = [order.randint(1, 3) if has_ids else 1 for _ in keys]
    broken = draw(st.sampled_from([0, 0, 0.2]))
    sequences = [
        sequence_text(key if has_ids else None, length, is_broken=order.random() < broken)
        for key, length in zip(keys, lengths, strict=True)
    ]
    bounds = np.cumsum([0, *totals]).tolist()
    texts = [b"".join(sequences[first:last]) for first, last in zip(bounds, bounds[1:], strict=False)]
    return texts, in_chunk * WIDTH


def written(folder: Path, texts: list[bytes], chunk_size: int = 4 * WIDTH) -> Corpus:
    for old in folder.glob("*"):
        old.unlink()
    (folder / "whole.ctf").write_bytes(b"".join(texts))
    for index, text in enumerate(texts):
        (folder / f"part-{index:03}.ctf").write_bytes(text)
    return Corpus(folder / "whole.ctf", str(folder / f"part-{{000..{len(texts) - 1:03}}}.ctf"), chunk_size)


def some_corpus(folder: Path, num_files: int = 5, first_key: int = 0) -> Corpus:
    keys = iter(range(first_key, 10**6))
    texts = [b"".join(sequence_text(next(keys), 2, is_broken=False) for _ in range(8)) for _ in range(num_files)]
    return written(folder, texts)


@pytest.fixture(autouse=True)
def small_texts_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctf_corpus, "LEAST_CACHED", 0)


@pytest.fixture
def few_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep two files open at most."""
    monkeypatch.setattr(file_corpus, "MOST_OPEN", 2)


OPTIONS = st.one_of(
    st.fixed_dictionaries({"randomize": st.just(False)}),
    st.fixed_dictionaries(
        {"randomization_seed": st.integers(0, 2**32)},
        optional={
            "randomization_window_in_chunks": st.integers(1, 5),
            "keep_data_in_memory": st.booleans(),
            "read_ahead_in_bytes": st.sampled_from([0, 100, 1 << 20]),
        },
    ),
    st.fixed_dictionaries(
        {"randomization_window_in_chunks": st.just(0), "randomization_window_in_samples": st.just(7)}
    ),
)


def delivered(source: MinibatchSource, size: int, **partition: int) -> Any:
    """Return all minibatches, the total number of errors, and the state after each minibatch."""
    with source:
        minibatches = []
        for minibatch in source.minibatches(size, **partition):
            state = source.state_dict()
            minibatches.append((shown(minibatch), minibatch["x"].mask.tolist(), state["timeline"], state["settings"]))
        return minibatches, source.error_counts


@pytest.mark.usefixtures("few_open")
@properties
@given(corpora(), OPTIONS, st.integers(1, 30), st.integers(1, 3), st.booleans())
def test_several_files_deliver_the_same_minibatches_as_one(
    module_folder: Path, texts: Any, options: dict[str, Any], size: int, count: int, keep: bool
) -> None:
    corpus = written(module_folder, *texts)
    for index in range(count):
        one, several = corpus.sources(keep=keep, max_sweeps=2, **options)
        partition = {"num_data_partitions": count, "partition_index": index}
        assert delivered(several, size, **partition) == delivered(one, size, **partition)


@pytest.mark.usefixtures("few_open")
@properties
@given(corpora(), OPTIONS, st.integers(1, 20), st.integers(0, 9))
def test_a_restored_concatenation_continues_as_one_file(
    module_folder: Path, texts: Any, options: dict[str, Any], size: int, steps: int
) -> None:
    corpus = written(module_folder, *texts)
    one, several = corpus.sources(max_sweeps=2, **options)
    restored, positioned = (corpus.sources(max_sweeps=2, **options)[1] for _ in range(2))
    with one, several, restored, positioned:
        assert rest(several, size, steps) == rest(one, size, steps)
        restored.load_state_dict(json.loads(json.dumps(several.state_dict())))
        positioned.restore_from_checkpoint(one.get_checkpoint_state())
        expected = rest(one, size)
        assert rest(several, size) == rest(restored, size) == rest(positioned, size) == expected


@properties
@given(corpora(), st.integers(1, 4), st.integers(1, 20), st.booleans())
def test_truncated_minibatches_are_the_same(
    module_folder: Path, texts: Any, steps: int, size: int, randomize: bool
) -> None:
    corpus = written(module_folder, *texts)

    def all_of(source: MinibatchSource) -> list[Any]:
        with source:
            return [
                [(data.values.tolist(), data.mask.tolist(), data.continues.tolist()) for data in minibatch.values()]
                for minibatch in source.minibatches(size)
            ]

    one, several = corpus.sources(max_sweeps=1, truncation_length=steps, randomize=randomize)
    assert all_of(several) == all_of(one)


@properties
@given(corpora(), st.integers(0, 5), st.booleans())
def test_errors_name_the_file_and_its_line(module_folder: Path, texts: Any, budget: int, randomize: bool) -> None:
    corpus = written(module_folder, *texts)
    lines_before = np.cumsum([0, *(text.count(b"\n") for text in texts[0])])

    def error_of(path: Any) -> FormatError | None:
        deserializer = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=corpus.chunk_size, max_errors=budget)
        with MinibatchSource(deserializer, max_sweeps=1, randomize=randomize) as source:
            try:
                rest(source, 4)
            except FormatError as error:
                return error
        return None

    one, several = error_of(corpus.whole), error_of(corpus.pattern)
    assert (one is None) == (several is None)
    if one is not None and several is not None:
        assert several.path is not None and several.line is not None
        index = int(Path(several.path).stem[-3:])
        assert lines_before[index] + several.line == one.line
        assert (several.column, several.sequence, several.stream, several.what) == (
            one.column, one.sequence, one.stream, one.what.replace(str(corpus.whole), several.path),
        )  # fmt: skip


@properties
@given(corpora(), corpora(), OPTIONS, st.integers(1, 20))
def test_joined_concatenations_deliver_the_same_as_joined_files(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any, options: dict[str, Any], size: int
) -> None:
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    corpora = [written(folder, *texts) for folder, texts in zip(folders, (first, second), strict=True)]
    streams = [{"x": STREAMS["x"]}, {"s": STREAMS["s"]}]

    def minibatches(paths: list[Any]) -> Any:
        deserializers = [
            CTFDeserializer(path, stream, chunk_size_in_bytes=corpus.chunk_size, max_errors=-1, subset=True)
            for path, stream, corpus in zip(paths, streams, corpora, strict=True)
        ]
        try:
            with MinibatchSource(deserializers, max_sweeps=1, trace_level=0, **options) as source:
                return rest(source, size)
        except CorpusError as error:
            assert "no key" in str(error)
            return None

    one, several = [corpus.whole for corpus in corpora], [corpus.pattern for corpus in corpora]
    assert minibatches(several) == minibatches(one)


# ------------------------------------------------------------------------------------------------------------- keys


def test_keys_that_count_lines_continue_in_the_next_file(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"\n\n|x 1 1\n\n|x 2 2\n\n")
    (tmp_path / "b.ctf").write_bytes(b"\n|x 3 3\n|x 4 4\n")
    (tmp_path / "whole.ctf").write_bytes(b"\n\n|x 1 1\n\n|x 2 2\n\n\n|x 3 3\n|x 4 4\n")
    streams = {"x": STREAMS["x"]}
    keys = [
        np.asarray(CTFDeserializer(tmp_path / name, streams).open().table.keys).tolist()
        for name in ("[ab].ctf", "whole.ctf")
    ]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("make", [Keys, Keys.of, Keys.compact])
def test_keys_that_move_beyond_64_bits_are_an_error(make: Any) -> None:
    keys = make(np.array([2**64 - 3, 2**64 - 2], np.uint64))
    assert keys.moved(1).tolist() == [2**64 - 2, 2**64 - 1]
    for first in (2, 2**64):
        with pytest.raises(ValueError, match="expected keys of 0 to 2"):
            keys.moved(first)


def test_counting_continues_after_the_lines_of_a_cached_index(tmp_path: Path) -> None:
    corpus = written(tmp_path, [sequence_text(None, 1, is_broken=False) * 3] * 2)
    for _ in range(2):
        opened = CTFDeserializer(corpus.pattern, STREAMS, cache_index=True).open()
        assert np.asarray(opened.table.keys).tolist() == list(range(6))
        opened.close()


def test_several_small_texts_have_no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = written(tmp_path, [sequence_text(None, 1, is_broken=False) * 3] * 2)
    monkeypatch.setattr(ctf_corpus, "LEAST_CACHED", 4 * WIDTH)
    (tmp_path / "part-001.ctf").write_bytes(sequence_text(None, 1, is_broken=False) * 4)
    for _ in range(2):
        opened = CTFDeserializer(corpus.pattern, STREAMS, cache_index=True).open()
        assert np.asarray(opened.table.keys).tolist() == list(range(7))
        opened.close()
    assert [path.name[:12] for path in tmp_path.glob("*.index")] == ["part-001.ctf"]


def test_refuses_an_id_that_is_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"7 |x 1 1\n9 |x 2 2\n")
    (tmp_path / "b.ctf").write_bytes(b"8 |x 3 3\n9 |x 4 4\n7 |x 4 4\n")
    with pytest.raises(FormatError, match=r"a\.ctf:\d has this id, too \(ids in several files: 2\)") as caught:
        CTFDeserializer(tmp_path / "{a,b}.ctf", {"x": STREAMS["x"]}).open()
    assert (caught.value.path, caught.value.line) == (str(tmp_path / "b.ctf"), 2)
    assert caught.value.sequence == 9


def test_keys_per_file_tell_equal_ids_apart(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"7 |x 1 1\n9 |x 2 2\n")
    (tmp_path / "b.ctf").write_bytes(b"9 |x 3 3\n")
    deserializer = CTFDeserializer(tmp_path / "*.ctf", {"x": STREAMS["x"]}, keys="per_file")
    with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
        assert source.next_minibatch(9).keys_of_sequences.tolist() == [7, 9, 10**12 + 9]
    assert deserializer.open(Opening(text_keys=True)).table.keys.tolist() == ["0/7", "0/9", "1/9"]


def test_keys_per_file_refuse_ids_that_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"7 |x 1 1\n")
    (tmp_path / "b.ctf").write_bytes(b"8 |x 1 1\n1000000000000 |x 2 2\n")
    with pytest.raises(FormatError, match=r"b\.ctf, line 2.*below 1,000,000,000,000"):
        CTFDeserializer(tmp_path / "*.ctf", {"x": STREAMS["x"]}, keys="per_file").open()
    with pytest.raises(ConfigError, match="expected 'unique' or 'per_file'"):
        CTFDeserializer("a.ctf", {"x": STREAMS["x"]}, keys="file")


def test_refuses_files_with_ids_among_files_without(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"|x 1 1\n")
    (tmp_path / "b.ctf").write_bytes(b"8 |x 1 1\n")
    with pytest.raises(CorpusError, match=r"the lines of .*a\.ctf have no ids, but the lines of .*b\.ctf have ids"):
        CTFDeserializer(tmp_path / "*.ctf", {"x": STREAMS["x"]}).open()
    table = CTFDeserializer(tmp_path / "*.ctf", {"x": STREAMS["x"]}, skip_sequence_ids=True).open().table
    assert np.asarray(table.keys).tolist() == [0, 1]


def test_a_file_without_the_defining_stream_adds_no_sequences(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_bytes(b"1 |s 1:1\n")
    (tmp_path / "b.ctf").write_bytes(b"2 |s 1:1 |x 1 1\n")
    x = dict(STREAMS["x"], defines_mb_size=True)
    deserializer = CTFDeserializer([tmp_path / "a.ctf", tmp_path / "b.ctf"], {"x": x, "s": STREAMS["s"]}, max_errors=-1)
    with MinibatchSource(deserializer, randomize=False, max_sweeps=1) as source:
        assert source.next_minibatch(9).keys_of_sequences.tolist() == [2]
    (tmp_path / "b.ctf").write_bytes(b"2 |s 1:1\n")
    with pytest.raises(CorpusError, match="nothing is left"):
        deserializer.open()
    for _ in range(2):  # the second time from a cache, if one was written
        with pytest.raises(CorpusError, match="no sequence contains 'x'.*; nothing is left"):
            CTFDeserializer(tmp_path / "a.ctf", {"x": x, "s": STREAMS["s"]}, cache_index=True).open()


# ------------------------------------------------------------------------------------------------------ states


def states_differ(folder: Path, change: Any) -> str:
    corpus = some_corpus(folder)
    deserializer = CTFDeserializer(folder / "part-*.ctf", STREAMS, chunk_size_in_bytes=corpus.chunk_size)
    with MinibatchSource(deserializer, max_sweeps=1) as source:
        source.next_minibatch(5)
        state = source.state_dict()
    change()
    with MinibatchSource(deserializer, max_sweeps=1) as source, pytest.raises(CheckpointError) as caught:
        source.load_state_dict(state)
    return str(caught.value)


def test_a_refused_state_names_the_file_that_changed(tmp_path: Path) -> None:
    def change() -> None:
        text = (tmp_path / "part-003.ctf").read_bytes()
        (tmp_path / "part-003.ctf").write_bytes(text.replace(b"|x 2 1", b"|x 3 1"))

    assert "where part-003.ctf has other content" in states_differ(tmp_path, change)


def test_a_refused_state_names_files_that_are_new_or_missing(tmp_path: Path) -> None:
    def change() -> None:
        (tmp_path / "part-001.ctf").rename(tmp_path / "part-009.ctf")
        (tmp_path / "part-009.ctf").write_bytes(sequence_text(999, 1, is_broken=False))

    assert "where part-009.ctf is new, part-001.ctf is missing" in states_differ(tmp_path, change)


def test_a_refused_state_says_that_the_order_of_files_changed(tmp_path: Path) -> None:
    def change() -> None:
        (tmp_path / "part-000.ctf").rename(tmp_path / "part-x00.ctf")

    assert "part-x00.ctf is new, part-000.ctf is missing" in states_differ(tmp_path, change)
    assert differences_of_files("2 files 0\na 1\nb 2", "2 files 1\nb 2\na 1") == ("the same files in another order")


def test_a_corpus_may_move_to_another_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    corpus = some_corpus(tmp_path / "here")
    one = CTFDeserializer(tmp_path / "here" / "part-*.ctf", STREAMS, chunk_size_in_bytes=corpus.chunk_size)
    with MinibatchSource(one, max_sweeps=1) as source:
        rest(source, 5, 3)
        state, expected = source.state_dict(), rest(source, 5)
    (tmp_path / "here").rename(tmp_path / "there")
    other = CTFDeserializer(tmp_path / "there" / "part-*.ctf", STREAMS, chunk_size_in_bytes=corpus.chunk_size)
    with MinibatchSource(other, max_sweeps=1) as source:
        source.load_state_dict(state)
        assert rest(source, 5) == expected


def test_a_pickled_source_of_files_continues(tmp_path: Path) -> None:
    with some_corpus(tmp_path).sources(max_sweeps=1)[1] as source:
        rest(source, 5, 3)
        with pickle.loads(pickle.dumps(source)) as copy:
            assert rest(copy, 5) == rest(source, 5)


# ------------------------------------------------------------------------------------------------------ faults


@pytest.mark.usefixtures("few_open")
@pytest.mark.parametrize("keep", [False, True])
def test_a_file_that_changes_in_mid_sweep_is_an_error(tmp_path: Path, keep: bool) -> None:
    corpus = some_corpus(tmp_path, 20)
    with corpus.sources(keep=keep, max_sweeps=1, randomize=False, read_ahead_in_bytes=0)[1] as source:
        source.next_minibatch(1)
        text = (tmp_path / "part-011.ctf").read_bytes()
        (tmp_path / "new").write_bytes(text[::-1])
        (tmp_path / "new").replace(tmp_path / "part-011.ctf")
        with pytest.raises(CorpusError, match=r"part-011\.ctf: changed while in use \(960 bytes when opened, as now"):
            rest(source, 1)


@pytest.mark.usefixtures("few_open")
def test_a_file_that_vanishes_in_mid_sweep_is_an_error(tmp_path: Path) -> None:
    corpus = some_corpus(tmp_path, 20)
    with corpus.sources(max_sweeps=1, randomize=False, read_ahead_in_bytes=0)[1] as source:
        source.next_minibatch(1)
        (tmp_path / "part-011.ctf").unlink()
        with pytest.raises(FileNotFoundError) as caught:
            rest(source, 1)
        assert caught.value.filename == str(tmp_path / "part-011.ctf")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FileNotFoundError, "part-002.ctf"),
        (b"GIF89a", FormatError, r"part-002\.ctf"),
        (b"99999999999999999999 |x 1 2\n", FormatError, r"part-002\.ctf.*a sequence id of 2\^64 or more"),
    ],
)
def test_a_bad_file_in_a_list_is_named(tmp_path: Path, content: bytes | None, error: Any, message: str) -> None:
    corpus = some_corpus(tmp_path)
    (tmp_path / "part-002.ctf").unlink()
    if content is not None:
        (tmp_path / "part-002.ctf").write_bytes(content)
    with pytest.raises(error, match=message):
        CTFDeserializer(corpus.pattern, STREAMS).open()


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("keep", [False, True])
def test_few_files_are_open_at_a_time(tmp_path: Path, keep: bool) -> None:
    corpus = some_corpus(tmp_path, 200)
    before = num_descriptors()
    for _ in range(2):
        with corpus.sources(keep=keep, max_sweeps=1)[1] as source:
            most = 0
            for _ in source.minibatches(16):
                most = max(most, num_descriptors())
    assert most < before + 2 * file_corpus.MOST_OPEN + 20
    assert num_descriptors() <= before + 2  # the other source


def test_files_that_cannot_be_opened_leave_nothing_open(tmp_path: Path) -> None:
    corpus = some_corpus(tmp_path, 100)
    (tmp_path / "part-099.ctf").write_bytes(b"GIF89a")
    before = num_descriptors()
    with pytest.raises(FormatError):
        CTFDeserializer(corpus.pattern, STREAMS).open()
    assert num_descriptors() <= before


def test_a_new_file_is_the_only_one_that_is_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_corpus(tmp_path)
    deserializer = CTFDeserializer(tmp_path / "part-*.ctf", STREAMS, cache_index=True)
    deserializer.open().close()
    from cntkio.formats.ctf import corpus as texts

    indexed = []
    make_index = texts.make_index
    monkeypatch.setattr(texts, "make_index", lambda file, *rest: indexed.append(file.path) or make_index(file, *rest))
    (tmp_path / "part-005.ctf").write_bytes(sequence_text(777, 1, is_broken=False))
    corpus = deserializer.open()
    assert corpus.table.num_sequences == 41
    corpus.close()
    assert indexed == [str(tmp_path / "part-005.ctf")]


def test_chunks_are_parsed_while_files_are_indexed(tmp_path: Path) -> None:
    corpus = some_corpus(tmp_path)
    deserializer = CTFDeserializer(corpus.pattern, STREAMS, chunk_size_in_bytes=corpus.chunk_size)
    for ahead, expected in ((Ahead(1 << 20), 10), (Ahead(1 << 20, 9), 0), (Ahead(1 << 20, 10), 10), (Ahead(0), 0)):
        opened = deserializer.open(Opening(ahead=ahead))
        assert sorted(opened.take_parsed()) == list(range(expected))
        opened.close()


def test_a_list_of_one_file_is_that_file(tmp_path: Path) -> None:
    corpus = some_corpus(tmp_path)
    one, listed = (CTFDeserializer(path, STREAMS).open() for path in (corpus.whole, [corpus.whole]))
    assert type(one) is type(listed)
    assert one.index.fingerprint == listed.index.fingerprint


# ----------------------------------------------------------------------------------------------------- binary files


def write_binaries(folder: Path, totals: list[int], layout: Any = "2.x") -> None:
    """Write a binary corpus as one file and as several; each chunk has 4 sequences."""
    for old in folder.glob("*"):
        old.unlink()
    values = np.arange(2 * sum(totals), dtype=np.float32).reshape(-1, 1, 2)
    size = 52 if layout == "2.x" else 32
    write_cbf(folder / "whole.cbf", {"x": values}, chunk_size_in_bytes=size, layout=layout)
    bounds = np.cumsum([0, *totals]).tolist()
    for index, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        write_cbf(folder / f"part-{index}.cbf", {"x": values[first:last]}, chunk_size_in_bytes=size, layout=layout)


@pytest.mark.usefixtures("few_open")
@pytest.mark.parametrize("layout", ["2.x", "documented"])
@pytest.mark.parametrize("keep", [False, True])
@properties
@given(st.lists(st.integers(1, 4).map(lambda count: 4 * count), min_size=1, max_size=5), st.integers(1, 5), OPTIONS)
def test_several_binary_files_deliver_the_same_minibatches_as_one(
    module_folder: Path, layout: Any, keep: bool, totals: list[int], rest_of_last: int, options: dict[str, Any]
) -> None:
    write_binaries(module_folder, [*totals, rest_of_last], layout)

    def minibatches(path: Path) -> list[Any]:
        with MinibatchSource(CBFDeserializer(path, keep_data_in_memory=keep), max_sweeps=2, **options) as source:
            return [
                (one.keys_of_sequences.tolist(), one["x"].values.tolist(), one["x"].end_of_sweep, source.num_chunks)
                for one in source.minibatches(5)
            ]

    assert minibatches(module_folder / "part-*.cbf") == minibatches(module_folder / "whole.cbf")


def test_binary_files_with_different_streams_are_refused(tmp_path: Path) -> None:
    write_cbf(tmp_path / "a.cbf", {"x": np.zeros((3, 1, 2))})
    write_cbf(tmp_path / "b.cbf", {"x": np.zeros((3, 1, 3))})
    with pytest.raises(ConfigError, match=r"b\.cbf: its streams are 'x': dense float64 \[3\], but the streams of"):
        CBFDeserializer(tmp_path / "*.cbf").open()


def test_a_broken_binary_file_is_named_with_the_key_of_the_sequence(tmp_path: Path) -> None:
    data = {"x": csr_array(np.eye(3, dtype=np.float32))}
    for name in ("a.cbf", "b.cbf"):
        write_cbf(tmp_path / name, data)
    content = bytearray((tmp_path / "b.cbf").read_bytes())
    at = content.index(np.array([1, 1], np.int32).tobytes(), 60)  # the index of the second sequence's entry
    content[at : at + 4] = (99).to_bytes(4, "little")
    (tmp_path / "b.cbf").write_bytes(content)
    with MinibatchSource(CBFDeserializer(tmp_path / "*.cbf"), max_sweeps=1, randomize=False) as source:
        with pytest.raises(FormatError, match="99") as caught:
            source.next_minibatch(9)
        assert (caught.value.path, caught.value.sequence) == (str(tmp_path / "b.cbf"), 4)


@pytest.mark.usefixtures("few_open")
def test_a_binary_file_that_changes_in_mid_sweep_is_an_error(tmp_path: Path) -> None:
    write_binaries(tmp_path, [4] * 9)
    with MinibatchSource(CBFDeserializer(tmp_path / "part-*.cbf"), max_sweeps=1, randomize=False) as source:
        write_cbf(tmp_path / "part-5.cbf", {"x": np.ones((4, 1, 2), np.float32)})
        with pytest.raises(CorpusError, match=r"part-5\.cbf: changed while in use"):
            list(source.minibatches(4))


def test_a_remark_about_all_binary_files_is_made_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_binaries(tmp_path, [4] * 3)
    streams = StreamDefs(x=StreamDef(field="x", shape=2, is_sparse=True))
    CBFDeserializer(tmp_path / "part-*.cbf", streams).open().close()
    assert len(caplog.records) == 1
    assert "stream 'x' is dense, not sparse" in caplog.text


# ----------------------------------------------------------------------------------------------------- speech


def write_speech(folder: Path, num_files: int = 3) -> None:
    """Write features and labels of utterances, as one list and label file and as several."""
    everything = [(f"u{key}", np.full((3 + key % 2, 2), key, np.float32)) for key in range(4 * num_files)]
    for index in range(num_files):
        some = everything[4 * index : 4 * index + 4]
        htk.write_archive(folder / f"part-{index}.ark", folder / f"part-{index}.scp", some)
        classes = [(key, np.full(len(frames), index)) for key, frames in some]
        mlf.write_mlf(folder / f"part-{index}.mlf", classes, ["a", "b", "c"])
        mlf.write_binary_mlf(folder / f"part-{index}.bmlf", classes)
    for suffix in ("scp", "mlf"):
        texts = [path.read_text().removeprefix("#!MLF!#\n") for path in sorted(folder.glob(f"part-*.{suffix}"))]
        (folder / f"whole.{suffix}").write_text("#!MLF!#\n" * (suffix == "mlf") + "".join(texts))
    mlf.write_mapping(folder / "states", ["a", "b", "c"])


def speech(folder: Path, scp: Any, labels: Any, **options: Any) -> MinibatchSource:
    return MinibatchSource(
        [
            HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=scp, shape=2))),
            HTKMLFDeserializer(folder / "states", StreamDefs(y=StreamDef(mlf=labels, shape=3))),
        ],
        **{"max_sweeps": 1, "randomize": False, **options},
    )


@pytest.mark.parametrize("frame_mode", [False, True])
def test_several_lists_and_label_files_deliver_the_same_as_one_of_each(tmp_path: Path, frame_mode: bool) -> None:
    write_speech(tmp_path)

    def minibatches(source: MinibatchSource) -> Any:
        with source:
            return [
                (one.keys_of_sequences.tolist(), one["x"].asarray().tolist(), one["y"].asarray().tolist())
                for one in source.minibatches(5)
            ]

    one = minibatches(speech(tmp_path, tmp_path / "whole.scp", tmp_path / "whole.mlf", frame_mode=frame_mode))
    lists, labels = str(tmp_path / "part-*.scp"), [tmp_path / "part-{0..1}.mlf", tmp_path / "part-2.mlf"]
    assert minibatches(speech(tmp_path, lists, labels, frame_mode=frame_mode)) == one
    assert sum(len(keys) for keys, *_ in one) == (42 if frame_mode else 12)


def test_chunks_of_features_never_span_lists(tmp_path: Path) -> None:
    write_speech(tmp_path)
    table = HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=tmp_path / "part-*.scp", shape=2))).open().table
    assert table.chunk_starts.tolist() == [0, 4, 8, 12]
    assert table.files is not None
    names, which = table.files(np.array([11, 0]))
    assert [Path(path).name for path in names[which]] == ["part-2.ark", "part-0.ark"]


def test_refuses_an_utterance_that_is_in_two_lists(tmp_path: Path) -> None:
    write_speech(tmp_path)
    lines = (tmp_path / "part-0.scp").read_text().splitlines()
    (tmp_path / "part-1.scp").write_text(f"{lines[2]}\n")
    with pytest.raises(
        FormatError,
        match=r"part-1\.scp, sequence u2, .*part-0\.scp has this utterance, too \(utterances in several lists: 1\)",
    ):
        HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=tmp_path / "part-*.scp", shape=2))).open()


def test_binary_label_files_may_be_a_pattern(tmp_path: Path) -> None:
    write_speech(tmp_path)
    labels = HTKMLFBinaryDeserializer(StreamDefs(y=StreamDef(mlf=tmp_path / "*.bmlf", shape=3)))
    assert labels.open().table.num_sequences == 12
    with pytest.raises(FileNotFoundError, match="No file matches the pattern"):
        HTKMLFBinaryDeserializer(StreamDefs(y=StreamDef(mlf=tmp_path / "*.bmfl", shape=3))).open()


@pytest.mark.parametrize(("name", "change"), [("part-1.scp", "u4"), ("part-2.mlf", '"u9')])
def test_a_refused_state_names_the_list_or_label_file_that_changed(tmp_path: Path, name: str, change: str) -> None:
    write_speech(tmp_path)
    with speech(tmp_path, tmp_path / "part-*.scp", tmp_path / "part-*.mlf") as source:
        state = source.state_dict()
    path = tmp_path / name
    path.write_text(path.read_text().replace(change, f"{change}9"))
    source = speech(tmp_path, tmp_path / "part-*.scp", tmp_path / "part-*.mlf")
    with source, pytest.raises(CheckpointError, match=f"where {name} has other content"):
        source.load_state_dict(state)


def test_each_of_several_files_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_file = os.open

    def counting(path: Any, *arguments: Any, **options: Any) -> int:
        opened.append(Path(os.fsdecode(path)).name)
        return open_file(path, *arguments, **options)

    corpus = some_corpus(tmp_path)
    monkeypatch.setattr(os, "open", counting)
    CTFDeserializer(corpus.pattern, STREAMS, chunk_size_in_bytes=corpus.chunk_size).open().close()
    parts = sorted(path.name for path in tmp_path.glob("part-*.ctf"))
    assert len(parts) > 1 and sorted(name for name in opened if name in parts) == parts


def test_a_compressed_file_of_several_may_have_any_name(tmp_path: Path) -> None:
    corpus = some_corpus(tmp_path)
    for path in list(tmp_path.glob("part-*.ctf"))[::2]:
        path.write_bytes(gzip.compress(path.read_bytes()))
    for randomize in (False, True):
        whole, several = (source for source in corpus.sources(max_sweeps=1, randomize=randomize))
        with whole, several:
            assert rest(several, 10) == rest(whole, 10)


# --------------------------------------------------------------------------------------------------- files of sequences


@pytest.mark.parametrize("randomize", [False, True])
def test_a_minibatch_says_which_files_its_sequences_are_in(tmp_path: Path, randomize: bool) -> None:
    with some_corpus(tmp_path).sources(max_sweeps=1, randomize=randomize)[1] as source:
        for minibatch in source.minibatches(10):
            names = [f"part-{key // 8:03}.ctf" for key in minibatch.keys_of_sequences.tolist()]
            assert [Path(path).name for path in minibatch.files_of_sequences] == names


def test_a_join_says_which_files_of_the_first_corpus_sequences_are_in(tmp_path: Path) -> None:
    write_speech(tmp_path)
    with speech(tmp_path, tmp_path / "part-*.scp", tmp_path / "whole.mlf") as source:
        files = source.next_minibatch(100).files_of_sequences
    assert [Path(path).name for path in files] == [f"part-{index // 4}.ark" for index in range(12)]


def test_the_file_of_a_single_file_is_that_file(tmp_path: Path) -> None:
    corpus = some_corpus(tmp_path)
    with corpus.sources(max_sweeps=1)[0] as source:
        assert set(source.next_minibatch(9).files_of_sequences.tolist()) == {str(corpus.whole)}
    with pytest.raises(ConfigError, match="expected a minibatch that a source of files has read"):
        _ = Minibatch({}, lambda: np.zeros(0, np.uint64)).files_of_sequences


def test_truncated_minibatches_say_which_files_their_parts_are_in(tmp_path: Path) -> None:
    with some_corpus(tmp_path).sources(max_sweeps=1, truncation_length=1)[1] as source:
        for minibatch in source.minibatches(10):
            names = [f"part-{key // 8:03}.ctf" for key in minibatch.keys_of_sequences.tolist()]
            assert [Path(path).name for path in minibatch.files_of_sequences] == names

"""Parts of chunks of a text: the data and the errors of some sequences, as if the others were not there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CTFDeserializer, FormatError, GlobalPartition, MinibatchSource, StreamDef, StreamDefs
from cntkio.formats.contract import Corpus
from cntkio.formats.ctf.findings import KINDS_OF_FINDINGS, ParserFindings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2), s=StreamDef(field="s", shape=300, is_sparse=True))
BAD = [" |x 1 y |s 4:1", " |x 1 2 3 |s 4:1", " |s 300:1 |x 1 2", " |x 1 |s 4:1", " |x 5 6", " |x 1 2 |s 4:1 |s 5:1"]
properties = settings(max_examples=rounds(80), suppress_health_check=list(HealthCheck))
LINES = st.lists(
    st.lists(
        st.one_of(*[st.just(f" |x {a} {a + 1} |s {a}:{b} 299:1") for a, b in ((0, 1), (7, 2.5), (251, 1))])
        | st.sampled_from(BAD),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=30,
)


def opened(folder: Path, sequences: list[list[str]], **options: Any) -> Corpus:
    lines = [f"{key}{line}\n" for key, sequence in enumerate(sequences) for line in sequence]
    (folder / "a.ctf").write_text("".join(lines))
    return CTFDeserializer(folder / "a.ctf", STREAMS, **{"max_errors": -1, **options}).open()


@properties
@given(LINES, st.data(), st.sampled_from([0, 40, 1 << 12]))
def test_a_part_finds_what_the_whole_chunk_finds_in_its_sequences(
    module_folder: Path, sequences: list[list[str]], data: st.DataObject, gap: int
) -> None:
    corpus = opened(module_folder, sequences)
    chosen = data.draw(st.sets(st.integers(0, len(sequences) - 1), min_size=1))
    part = np.array(sorted(chosen), np.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cntkio.formats.ctf.corpus.GAP", gap)
        loaded = corpus.load(0, part)
    assert loaded.chunk.num_sequences == len(part)
    nothing = ParserFindings([0] * len(KINDS_OF_FINDINGS), [], None, 0, 0)
    counts = np.zeros(len(KINDS_OF_FINDINGS), int)
    offsets = []
    for sequence in part:
        alone = corpus.load(0, np.array([sequence], np.uint32)).findings or nothing
        counts += alone.counts
        offsets += [(finding.kind, alone.first_byte + finding.offset) for finding in alone.first]
        assert all(alone.sequence_index(finding) == sequence for finding in alone.first)
    findings = loaded.findings or nothing
    assert findings.counts == counts.tolist()
    found = [(finding.kind, findings.first_byte + finding.offset) for finding in findings.first]
    assert set(found) <= set(offsets) and (sum(counts) > 10 or sorted(found) == sorted(offsets))
    corpus.close()


@properties
@given(
    LINES, st.integers(2, 4), st.integers(1, 20), st.sampled_from(["length", "area"]), st.sampled_from([60, 1 << 20])
)
def test_ranks_that_load_parts_deliver_the_values_of_one_reader(
    module_folder: Path, sequences: list[list[str]], count: int, size: int, deal: Any, chunk_size: int
) -> None:
    opened(module_folder, sequences).close()

    def read(partition: Any = None) -> list[tuple[Any, ...]]:
        corpus = CTFDeserializer(module_folder / "a.ctf", STREAMS, max_errors=-1, chunk_size_in_bytes=chunk_size)
        found = []
        with MinibatchSource(corpus, max_sweeps=1) as source:
            while (minibatch := source.read(size, *([] if partition is None else [partition]))) is not None:
                if minibatch.num_sequences:
                    dense, sparse = (minibatch[name].as_sequences() for name in ("x", "s"))
                    for key, *one in zip(minibatch.keys_of_sequences.tolist(), dense, sparse, strict=True):
                        found.append((key, one[0].tolist(), np.asarray(one[1].todense()).nonzero()[1].tolist()))
        return found

    ranks = [read(GlobalPartition(index, count, deal)) for index in range(count)]
    assert sorted(found for rank in ranks for found in rank) == sorted(read())


def test_an_error_belongs_to_the_rank_that_has_its_sequence(module_folder: Path) -> None:
    good, bad = [" |x 1 2 |s 1:1"], [" |x 1 y |s 1:1"]
    opened(module_folder, [good, bad, good, good]).close()
    corpus = CTFDeserializer(module_folder / "a.ctf", STREAMS)
    errors = []
    for index in range(4):
        with MinibatchSource(corpus, randomize=False, max_sweeps=1) as source:
            try:
                source.read(100, GlobalPartition(index, 4))
            except FormatError as error:
                errors.append((index, error.line, error.sequence))
    assert errors == [(1, 2, 1)]


def test_a_budget_that_a_part_exceeds_names_the_error_beyond_it(module_folder: Path) -> None:
    good, bad = [" |x 1 2 |s 1:1"], [" |x 1 y |s 1:1"]
    corpus = opened(module_folder, [bad, good, bad, bad, bad], max_errors=4)  # each of them costs two
    first = corpus.load(0, np.array([0, 1], np.uint32))
    corpus.account_for(first)
    second = corpus.load(0, np.array([2, 3, 4], np.uint32))
    with pytest.raises(FormatError, match="error 5, and max_errors is 4") as raised:
        corpus.account_for(second)
    assert raised.value.sequence == 3
    corpus.close()

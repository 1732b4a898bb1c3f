"""The examples of the format's published pages have the results that the pages state, with every reader.

A reader is added to `READERS`: a function of a file, its streams and options that gives an `Outcome` or raises a
`Refusal`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import FormatError, _core
from slow import ctf as slow_ctf
from slow.ctf import Stream
from support import DATA
from support.ctf_files import CtfFile
from support.ctf_reader import ERRORS, deserializer, samples_of

PAGES = DATA / "ctf_pages"


@dataclass
class Outcome:
    """Result of a reader: key, length and samples of each sequence, and the kinds of the warnings.

    A dense sample is a list of values, a sparse sample is a list of pairs of index and value.
    """

    sequences: list[tuple[int, int, dict[str, list[Any]]]]
    warnings: list[str]


class Refusal(Exception):
    """The file was refused: kind, position and sequence of the error that found the budget empty."""

    def __init__(self, kind: str, byte: int, sequence: int) -> None:
        super().__init__(kind, byte, sequence)
        self.kind, self.byte, self.sequence = kind, byte, sequence


Reader = Callable[..., Outcome]


def slow_reader(path: Path, streams: list[Stream], max_errors: int = 0, strict: bool = False) -> Outcome:
    result = slow_ctf.read(path.read_bytes(), streams)
    for problem in (result.warnings if strict else []) + result.errors[max_errors:]:
        raise Refusal(problem.kind, problem.offset, int(problem.key))
    sequences = [(int(e.key), e.length, dict(s)) for e, s in zip(result.index, result.samples, strict=True)]
    return Outcome(sequences, [warning.kind for warning in result.warnings])


REMARKS = {"repeated id": "repeated-id", "line left out": "left-out-line", "sequence left out": "left-out-sequence"}


def fast_reader(path: Path, streams: list[Stream], max_errors: int = 0, strict: bool = False) -> Outcome:
    file = CtfFile(b"", streams)
    try:
        corpus = deserializer(path, file, max_errors=max_errors, strict=strict).open()
    except FormatError as error:  # a remark of the index, strictly
        assert "an earlier sequence in the file has this id" in str(error)
        raise Refusal("repeated-id", error.byte, error.sequence) from error
    table = corpus.table
    samples, warnings = [], [REMARKS[kind] for kind, count in corpus.report.warnings.items() for _ in range(count)]
    for number in range(table.num_chunks):
        loaded = corpus.load(number)
        try:
            corpus.account_for(loaded)
        except FormatError as error:
            kind = loaded.findings.last_straw.kind if loaded.findings.last_straw else loaded.findings.first[-1].kind
            raise Refusal(ERRORS[kind], error.byte, error.sequence) from error
        samples += samples_of(loaded.chunk, corpus, file)
        found = loaded.findings.first if loaded.findings else []
        warnings += [ERRORS[one.kind] for one in found if one.kind >= _core.CTF_NUM_ERROR_KINDS]
    corpus.close()
    return Outcome(list(zip(table.keys.tolist(), table.lengths.tolist(), samples, strict=True)), warnings)


READERS: dict[str, Reader] = {"slow": slow_reader, "fast": fast_reader}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


def dense(alias: str, dim: int, name: str | None = None) -> Stream:
    return Stream(name or alias, alias, dim)


def sparse(alias: str, dim: int, name: str | None = None) -> Stream:
    return Stream(name or alias, alias, dim, is_sparse=True)


def hot(*indices: int) -> list[list[tuple[int, float]]]:
    """Samples of one entry each, of value 1."""
    return [[(index, 1)] for index in indices]


AB = [dense("a", 3), dense("b", 2)]
EXTENDED = [dense("a", 3, "Some_very_long_input_name"), dense("b", 2, "Some_other_also_very_long_input_name")]
RANKING = [
    *([4, 23, 35, 0, 0, 0, 21, 2345, 0, 0, 0, 0, 0], [2, 0, 123, 0, 22, 44, 44, 290, 22, 22, 22, 33, 0]),
    *([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], [1, 34, 56, 0, 0, 0, 45, 1312, 0, 0, 0, 0, 0]),
    *([0, 45, 45, 0, 0, 0, 12, 335, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 22, 0, 0, 0, 0, 0]),
]
APPLES = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    [0, 1.1, 22, 0.3, 14, 54, 0.06, 0.7, 1.8, 9.9],
    [3.9, 1.11, 121.2, 99.13, 0.04, 2.95, 1.6, 7.19, 10.8, -9.9],
]
LONG = [[(100, 3), (123, 4)], [(1134, 1.911), (13331, 0.014)], [(999, 0.001), (918918, -9.19)]]

# file => streams; per sequence: key, length, samples of the streams in their order
READ: dict[str, tuple[list[Stream], list[tuple[int, int, list[Any]]]]] = {
    "simple": (
        [dense("A", 5), sparse("B", 1000000), dense("C", 1)],
        [
            (0, 1, [[[0, 1, 2, 3, 4]], [LONG[0]], [[8]]]),
            (1, 1, [[[0, 1.1, 22, 0.3, 54]], [LONG[1]], [[123917]]]),
            (2, 1, [[[3.9, 1.11, 121.2, 99.13, 0.04]], [LONG[2]], [[-0.001]]]),
        ],
    ),
    "simple-2016": (
        [dense("Apples", 10), sparse("Oranges", 1000000), dense("Bananas", 1)],
        [(k, 1, [[APPLES[k]], [LONG[k]], [[banana]]]) for k, banana in enumerate([8, 123917, -0.001])],
    ),
    "no-id-on-first-line": (
        AB,
        [
            (0, 1, [[[1, 2, 3]], [[100, 200]]]),
            (1, 1, [[[4, 5, 6]], [[101, 201]]]),
            (2, 1, [[[7, 8, 9]], [[102983, 14532]]]),
        ],
    ),
    "classification": (
        [sparse("class", 24), dense("features", 5)],
        [(0, 1, [hot(23), [[2, 3, 4, 5, 6]]]), (1, 1, [hot(13), [[1, 2, 0, 2, 3]]])],
    ),
    "dssm": (
        [sparse("src", 50000), sparse("tgt", 300000)],
        [
            (0, 1, [[[(12, 1), (23, 1), (345, 2), (45001, 1)]], [[(233, 1), (766, 2), (234, 1)]]]),
            (
                1,
                1,
                [
                    [[(123, 1), (56, 1), (10324, 1), (18001, 3)]],
                    [[(233, 1), (2344, 2), (8889, 1), (2234, 1), (253434, 1)]],
                ],
            ),
        ],
    ),
    "tagging": (
        [sparse("word", 235), sparse("tag", 14)],
        [(0, 3, [hot(234, 123, 123), hot(12, 10, 13)]), (1, 2, [hot(234, 123), hot(12, 10)])],
    ),
    "sequence-classification": (
        [sparse("word", 1000), sparse("class", 4)],
        [(0, 3, [hot(234, 123, 890), hot(3)]), (1, 2, [hot(11, 344), hot(2)])],
    ),
    "sequence-to-sequence-completed": (
        [sparse("sourceWord", 400), sparse("targetWord", 3000)],
        [(0, 4, [hot(234, 123, 123, 11), hot(344, 456, 2222)]), (1, 1, [hot(123), hot(7)])],
    ),
    "ranking": (
        [dense("rating", 1), dense("features", 12)],
        [
            (key, len(rows), [[row[:1] for row in rows], [row[1:] for row in rows]])
            for key, rows in enumerate([RANKING[:3], RANKING[3:5], RANKING[5:]])
        ],
    ),
    "composite": (
        [sparse("qui", 95589, "qu1fea"), sparse("quj", 95589, "qu2fea"), dense("wij", 1, "pairweight")],
        [(0, 1, [[[(3, 1), (95588, 2)]], hot(0), [[0.5]]]), (1, 1, [[[]], hot(17), [[1.5]]])],
    ),
}


def samples(streams: list[Stream], values: list[Any]) -> dict[str, list[Any]]:
    return {stream.name: as_float32(of_stream) for stream, of_stream in zip(streams, values, strict=True)}


def as_float32(values: Any) -> Any:
    if isinstance(values, list):
        return [as_float32(value) for value in values]
    return (values[0], as_float32(values[1])) if isinstance(values, tuple) else float(np.float32(values))


@pytest.mark.parametrize("name", READ)
def test_the_example_reads_as_its_page_says(name: str, reader: Reader) -> None:
    streams, expected = READ[name]
    outcome = reader(PAGES / f"{name}.ctf", streams, strict=True)
    assert outcome.sequences == [(key, length, samples(streams, values)) for key, length, values in expected]


def test_the_extended_example_has_five_sequences_with_a_hundred_errors_allowed(reader: Reader) -> None:
    outcome = reader(PAGES / "extended.ctf", EXTENDED, max_errors=100, strict=True)
    assert outcome.sequences == [
        (key, length, samples(EXTENDED, values))
        for key, length, values in [
            (100, 4, [[[1, 2, 3], [4, 5, 6], [7, 8, 9], [7, 8, 9]], [[100, 200], [101, 201], [102983, 14532]]]),
            (200, 1, [[[10, 20, 30]], [[300, 400]]]),
            (333, 2, [[], [[500, 100], [600, -900]]]),
            (400, 3, [[[1, 2, 3], [4, 5, 6], [4, 5, 6]], [[100, 200], [101, 201], [101, 201]]]),
            (500, 1, [[[1, 2, 3]], [[100, 200]]]),
        ]
    ]


def test_the_extended_example_costs_one_error_for_a_missing_input(reader: Reader) -> None:
    assert len(reader(PAGES / "extended.ctf", EXTENDED, max_errors=1).sequences) == 5
    with pytest.raises(Refusal) as refusal:
        reader(PAGES / "extended.ctf", EXTENDED)
    assert (refusal.value.kind, refusal.value.byte, refusal.value.sequence) == ("missing-stream", 118, 333)


def test_the_extended_example_skips_the_sequence_without_the_defining_input(reader: Reader) -> None:
    a_defines = [EXTENDED[0]._replace(defines_mb_size=True), EXTENDED[1]]
    outcome = reader(PAGES / "extended.ctf", a_defines)
    assert [(key, length) for key, length, _ in outcome.sequences] == [(100, 4), (200, 1), (400, 3), (500, 1)]
    assert outcome.warnings == ["left-out-sequence"]


def test_a_repeated_id_is_a_warning_and_an_error_if_strict(reader: Reader) -> None:
    outcome = reader(PAGES / "invalid-repeated-id.ctf", AB)
    assert [(key, length) for key, length, _ in outcome.sequences] == [(100, 1), (200, 1), (100, 1)]
    assert outcome.warnings == ["repeated-id"]
    with pytest.raises(Refusal) as refusal:
        reader(PAGES / "invalid-repeated-id.ctf", AB, strict=True)
    assert (refusal.value.kind, refusal.value.byte, refusal.value.sequence) == ("repeated-id", 48, 100)


def test_more_lines_than_samples_are_an_error(reader: Reader) -> None:
    with pytest.raises(Refusal) as refusal:
        reader(PAGES / "invalid-too-many-lines.ctf", AB)
    assert (refusal.value.kind, refusal.value.byte, refusal.value.sequence) == ("too-few-samples", 24, 456)
    outcome = reader(PAGES / "invalid-too-many-lines.ctf", AB, max_errors=1)
    assert outcome.sequences[1] == (456, 2, samples(AB, [[[4, 5, 6]], [[101, 201]]]))


def test_more_lines_than_samples_are_fine_once_an_input_defines_the_size(reader: Reader) -> None:
    outcome = reader(PAGES / "invalid-too-many-lines.ctf", [AB[0]._replace(defines_mb_size=True), AB[1]], strict=True)
    assert [(key, length) for key, length, _ in outcome.sequences] == [(123, 1), (456, 1)]


def test_the_sequence_to_sequence_example_is_cut_short_and_costs_one_error(reader: Reader) -> None:
    streams = [sparse("sourceWord", 400), sparse("targetWord", 3000)]
    with pytest.raises(Refusal) as refusal:
        reader(PAGES / "sequence-to-sequence.ctf", streams)
    assert (refusal.value.kind, refusal.value.sequence) == ("missing-stream", 1)
    outcome = reader(PAGES / "sequence-to-sequence.ctf", streams, max_errors=1)
    assert outcome.sequences[1] == (1, 1, samples(streams, [hot(123), []]))

"""The slow CTF reader agrees with CNTK 2.7 on the recorded cases, except for a closed list with its reasons."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from support import ROOT
from support.ctf_files import CtfFile, ctf_files, valid_ctf_files
from support.recorded import Case, cases, folder_of, unpacked

from slow import ctf as slow_ctf
from slow.ctf import Problem, Refused, Stream

# Intended differences of cntkio. All other cases agree value by value.
ROUNDED = "numbers are rounded correctly"
SANE_NUMBERS = "0e400 and a fraction of 310 digits are 0 and a third, not NaN"
ID_OVERFLOW = "an id beyond 64 bits is refused, even if the engine wraps it around"
FORGIVEN = "a stream without a sample is one error; within the budget the sequence is delivered with that stream empty"
NOTHING = "blank lines, and lines with only comments, count as nothing, also where CNTK counts them as errors"
TWO_STREAMS = "stream names that differ in case are two streams"
DIFFERENT = {
    "number-rounding": ROUNDED,
    "number-overflow": SANE_NUMBERS,
    "id-wrap": ID_OVERFLOW,
    "cfg-names-differ-in-case": TWO_STREAMS,
    **dict.fromkeys(
        [
            "doc-extended-maxerrors",
            "doc-seq2seq-as-printed",
            "input-missing",
            "input-missing-later",
            "input-missing-one-line",
            "mb-other-missing",
            "mix-5217",
            "mix-5309",
            "non-ascii-name",
            "only-sample-bad",
        ],
        FORGIVEN,
    ),
    **dict.fromkeys(
        (
            "blank-tail comment-line comment-line-ids-0 mix-5008 mix-5009 mix-5010 unit-blank-lines "
            "unit-blank-lines-ids-1 unit-blank-lines-skip-many unit-invalid-inputs-less"
        ).split(),
        NOTHING,
    ),
}
REFUSE_TABLES = {"refuse", "refuse_old"}
TRUTH = dict.fromkeys(("true", "True", "TRUE", "t", "T", "1", True, 1), True) | dict.fromkeys(
    ("false", "False", "FALSE", "f", "F", "0", "", False, 0), False
)


class Raised(Exception):
    """The read raised an error. Cases do not compare its text."""


def streams_of(deserializer: dict[str, Any]) -> list[Stream]:
    return [
        Stream(
            name,
            stream["field"],
            int(np.prod(stream["shape"])),
            stream.get("is_sparse", False),
            stream.get("defines_mb_size", False),
        )
        for name, stream in deserializer["streams"].items()
    ]


def check(streams: list[Stream]) -> None:
    """Raise an error for a mistake in the configuration."""
    aliases = [stream.alias for stream in streams]
    definers = [stream for stream in streams if stream.defines_mb_size]
    if len(set(aliases)) < len(aliases) or len(definers) > 1 or any(not 1 <= s.dim < 2**31 for s in streams):
        raise Raised("configuration")


def delivered(case: Case, missing_stream_is_fatal: bool) -> tuple[list[Any], bool]:
    """Return the minibatches of a case and whether it ended in an error (docs/timeline.md, in order)."""
    minibatches: list[Any] = []
    try:
        for minibatch in in_order(case, missing_stream_is_fatal):
            minibatches.append(minibatch)
    except (Raised, Refused, FileNotFoundError):
        return minibatches, True
    return minibatches, False


def in_order(case: Case, missing_stream_is_fatal: bool) -> Iterator[dict[str, Any]]:
    (deserializer,) = case.spec["deserializers"]
    streams = streams_of(deserializer)
    check(streams)
    options = {key.lower(): value for key, value in deserializer.get("options", {}).items()}
    if options.get("skipsequenceids", False) not in TRUTH:
        raise Raised("skipSequenceIds")
    result = slow_ctf.read(
        (case.folder / deserializer["file"]).read_bytes(),
        streams,
        skip_sequence_ids=TRUTH[options.get("skipsequenceids", False)],
        chunk_size_in_bytes=int(options.get("chunksizeinbytes", 32 << 20)),
    )
    budget = int(options.get("maxerrors", 0))
    chunk_of = np.searchsorted(result.chunk_starts, np.arange(len(result.index)), side="right") - 1
    source, (read,) = case.spec["source"], case.spec["reads"]
    sweep = sum(sequence.length for sequence in result.index)
    end = source["max_samples"] if source.get("max_samples") else source["max_sweeps"] * sweep
    position = place = errors = 0
    loaded: set[int] = set()
    while position < end:
        first_position, room = position, read["size"]
        taken: list[int] = []
        while room > 0 and position < end:
            sequence = result.index[place % len(result.index)]
            if taken and sequence.length > room:
                break
            taken.append(place % len(result.index))
            position, place, room = position + sequence.length, place + 1, room - sequence.length
        needed = {int(chunk_of[i]) for i in taken}
        for problem in (p for i, of in enumerate(result.errors_of) if chunk_of[i] in needed - loaded for p in of):
            errors += 1
            if 0 <= budget < errors or (missing_stream_is_fatal and problem.kind == "missing-stream"):
                raise Raised(problem)
        loaded = needed
        if source.get("frame_mode") and any(len(s) > 1 for i in taken for s in result.samples[i].values()):
            raise Raised("frame mode")
        end_of_sweep = first_position // sweep != position // sweep
        yield {
            "checkpoint": {"minibatchSourcePosition": position},
            "streams": {
                stream.name: packed(
                    stream,
                    [result.samples[i][stream.name] for i in taken],
                    deserializer["streams"][stream.name]["shape"],
                    end_of_sweep,
                    case.spec.get("raw_sparse", False),
                )
                for stream in streams
            },
        }
    yield {"checkpoint": {"minibatchSourcePosition": position}, "streams": {}}


def packed(stream: Stream, sequences: list[Any], shape: Any, end_of_sweep: bool, raw: bool) -> dict[str, Any]:
    lengths = [len(sequence) for sequence in sequences]
    steps = max(lengths)
    mask = None
    if min(lengths) < steps:
        mask = [[2] * (n > 0) + [1] * (n - 1) + [0] * (steps - n) for n in lengths]
    return {
        "end_of_sweep": end_of_sweep,
        "mask": mask,
        "num_samples": sum(lengths),
        "num_sequences": len(sequences),
        "sequences": [csr(s, raw) if stream.is_sparse else [list(map(number, v)) for v in s] for s in sequences],
        "shape": [len(sequences), steps, *(shape if isinstance(shape, list) else [shape])],
    }


def csr(samples: list[list[tuple[int, float]]], raw: bool) -> dict[str, Any]:
    if not raw:  # recorded through a dense matrix
        sums = [{i: sum(v for j, v in sample if j == i) for i in sorted(dict(sample))} for sample in samples]
        samples = [[(i, v) for i, v in sample.items() if v] for sample in sums]
    return {
        "data": [number(value) for sample in samples for _, value in sample],
        "indices": [i for sample in samples for i, _ in sample],
        "indptr": [sum(map(len, samples[:n])) for n in range(len(samples) + 1)],
    }


def number(value: float) -> float | str:
    return float(repr(np.float32(value).item())) if np.isfinite(value) else str(value)


def as_float32(recorded: Any) -> Any:
    """Return the float32 values of their recorded shortest texts."""
    if isinstance(recorded, list):
        return [as_float32(item) for item in recorded]
    if isinstance(recorded, dict):
        return {key: value if key == "shape" else as_float32(value) for key, value in recorded.items()}
    return float(np.float32(recorded)) if isinstance(recorded, float) else recorded


def agrees(case: Case, missing_stream_is_fatal: bool = False) -> bool:
    minibatches, is_error = delivered(case, missing_stream_is_fatal)
    recorded = as_float32(case.expected["minibatches"])
    return minibatches == recorded and is_error == (case.expected["error"] is not None)


ALONE = [case for case in cases("ctf") if [d["type"] for d in case.spec["deserializers"]] == ["ctf"]]


@pytest.mark.parametrize("case", [case for case in ALONE if case.name not in DIFFERENT], ids=str)
def test_slow_reader_agrees_with_the_recorded_case(case: Case) -> None:
    assert agrees(case)


@pytest.mark.parametrize("case", [case for case in ALONE if case.name in DIFFERENT], ids=str)
def test_slow_reader_differs_in_all_listed_cases(case: Case) -> None:
    assert not agrees(case)
    assert agrees(case, missing_stream_is_fatal=True) == (DIFFERENT[case.name] is FORGIVEN)


@pytest.mark.parametrize("area", ["ctf", "cbf", "htk", "timeline", "config"])
def test_packed_cases_equal_the_cases_that_are_read(area: str) -> None:
    packed_copy = unpacked(area)
    files = [file for file in packed_copy.rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert file.read_bytes() == (folder_of(area) / file.relative_to(packed_copy)).read_bytes(), file
    names = {case.name for case in cases(area)}
    assert {file.stem for file in packed_copy.glob("*.json") if "expected" not in file.name} - names <= REFUSE_TABLES


A = Stream("A", "a", 2)
B = Stream("B", "b", 5, is_sparse=True)

# data => errors and warnings, as kind, position, key, stream
PROBLEMS: list[tuple[bytes, list[tuple[str, int, int, str | None]], list[tuple[str, int, int, str | None]]]] = [
    (b"|a 1 2 |b 0:1 4:2\n", [], []),
    (b"|a 1 2x |a 1 2|b\n", [("bad-number", 6, 0, "A")], []),
    (b"|a 1.2.3 |a 1 2|b\n", [("bad-number", 6, 0, "A")], []),
    (b"|a 1 2 |b 1:1e\n|b 2:1|a 1 2", [("bad-number", 14, 0, "B"), *[(k, 0, 0, "B") for k in ("missing-stream",)]], []),
    (b"|a 1 2 |b 1 |b\n", [("missing-colon", 11, 0, "B")], []),
    (b"|a 1 2 |b 1: 2 |b\n", [("bad-number", 12, 0, "B")], []),
    (b"|a 1 2 |b 0:1 x:2 |b\n", [("bad-index", 14, 0, "B")], []),
    (b"|a 1 2 |b 0:1 007:2 |b\n", [("index-out-of-range", 14, 0, "B")], []),
    (b"|a 1 2 |b 99999999999999999999:2 |b\n", [("index-out-of-range", 10, 0, "B")], []),
    (b"|b |a 1 2  3 4 |a 1 2\n", [("too-many-values", 11, 0, "A")], []),
    (b"|b |a 1 2 x|c\n", [("bad-number", 10, 0, "A"), ("missing-stream", 0, 0, "A")], []),
    (b"|b |a 1 2\r!!!|c !\n", [("junk", 10, 0, None)], []),
    (
        b"|b |a 1 2| |a\n",
        [("pipe-without-name", 9, 0, None), ("too-many-samples", 0, 0, "A")],
        [("short-dense-sample", 11, 0, "A"), ("stream-twice-on-a-line", 11, 0, "A")],
    ),
    (b"|b |a 1 2|x", [("name-at-end", 9, 0, None)], []),
    (b"|b |a 1 2|xy", [], []),
    (b"|b |a 1 2|", [("name-at-end", 9, 0, None)], []),
    (b"|b |a ", [("empty-value-at-end", 3, 0, "A"), ("missing-stream", 0, 0, "A")], []),
    (b"|a 1 2|b ", [("empty-value-at-end", 6, 0, "B"), ("missing-stream", 0, 0, "B")], []),
    (b"|b |a 1", [], [("short-dense-sample", 3, 0, "A")]),
    (b"|b |a 1 2 3", [], []),
    (b"|b |a 1 2 3e", [("bad-number", 12, 0, "A"), ("missing-stream", 0, 0, "A")], []),
    (b"|a 1 2|b 1", [("missing-colon", 10, 0, "B"), ("missing-stream", 0, 0, "B")], []),
    (b"|b |a 1 2\xc3\n", [], [("high-byte-ends-value", 9, 0, "A")]),
    (b"|b |a 1\xc3\n", [], [("high-byte-ends-value", 7, 0, "A"), ("short-dense-sample", 3, 0, "A")]),
    (b"7 |a 1 2|b\n\n8|a 1 2|b\n", [], []),
    (b"7 |a 1 2|b\n8|a 1 2|b\n7|b |a 1 2", [], [("repeated-id", 21, 7, None)]),
]


@pytest.mark.parametrize(("data", "errors", "warnings"), PROBLEMS)
def test_errors_and_warnings_name_the_first_unacceptable_byte(
    data: bytes, errors: list[Any], warnings: list[Any]
) -> None:
    result = slow_ctf.read(data, [A, B])
    assert result.errors == [Problem(*error) for error in errors]
    assert result.warnings == [Problem(*warning) for warning in warnings]


@pytest.mark.parametrize(
    ("data", "kind", "offset"),
    [
        (b"\xff\xfe1", "utf-16", 0),
        (b"", "empty-file", 0),
        (b"\xef\xbb", "empty-file", 0),
        (b" \n\t\v\f\r", "only-white-space", 0),
        (b"\n utt1 |a 1", "no-sequence-id", 2),
        (b" 12", "no-sequence-id", 3),
        (b"1 |a 1\n018446744073709551616|a 1\n", "id-overflow", 7),
        (b"1 |a 1\n30000000000000000000", "id-overflow", 7),
    ],
)
def test_refuses_other_formats_with_a_position(data: bytes, kind: str, offset: int) -> None:
    with pytest.raises(Refused) as refused:
        slow_ctf.read(data, [A])
    assert (refused.value.kind, refused.value.offset) == (kind, offset)


def test_skips_data_without_the_defining_stream_with_a_warning() -> None:
    definer = [A._replace(defines_mb_size=True)]
    by_line = slow_ctf.read(b"|a 1 2\n|ab\n|a 1 2\n", definer)
    by_id = slow_ctf.read(b"1 |a 1 2\n|ab\n2 |b\n1 |a 1 2|a", definer)
    assert [tuple(entry) for entry in by_line.index] == [(0, 0, 7, 1), (2, 11, 7, 1)]
    assert [tuple(warning) for warning in by_line.warnings] == [("left-out-line", 7, 1, "A")]
    assert [tuple(entry) for entry in by_id.index] == [(1, 0, 13, 1), (1, 18, 10, 1)]
    assert [(kind, offset) for kind, offset, _, _ in by_id.warnings] == [("left-out-sequence", 13), ("repeated-id", 18)]


def test_symbolic_ids_are_words_without_errors() -> None:
    result = slow_ctf.read(b"u1 |a 1 2\n\t|a 3 4\n01 |a 5 6\n1|a 7 8\n", [A], symbolic_ids=True)
    assert [entry.key for entry in result.index] == [b"u1", b"01", b"1|a"]
    assert [sample["A"] for sample in result.samples] == [[[1, 2], [3, 4]], [[5, 6]], [[7, 8]]]
    assert not result.errors


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5236994326114654541015625", 0.5236994),
        ("16777217", 16777216),
        ("16777217.0000000001", 16777218),
        ("16777219", 16777220),
        ("0e400", 0.0),
        ("1e" + "9" * 400, np.inf),
        ("1e-" + "9" * 400, 0.0),
        ("3.4028235e38", np.finfo(np.float32).max),
        ("3.4028235677973366e38", np.finfo(np.float32).max),
        ("3.4028235677973367e38", np.inf),
        ("7.006492321624085e-46", 0.0),
        ("7.006492321624086e-46", np.float32(1e-45)),
        ("1" + "0" * 300 + "e-300", 1.0),
        ("0." + "3" * 310, np.float32(1 / 3)),
    ],
)
def test_rounds_to_the_nearest_float32_with_ties_to_even(text: str, value: float) -> None:
    (sample,) = slow_ctf.read(f"|a {text} -{text}\n".encode(), [A]).samples
    assert np.array_equal(sample["A"], [[np.float32(value), -np.float32(value)]])
    assert np.array_equal(np.signbit(sample["A"]), [[False, True]])


def test_rounds_to_float64_like_python() -> None:
    texts = ["0.1", "1e23", "9007199254740993", "5e-324", "2.4703282292062328e-324", "1.7976931348623159e308"]
    (sample,) = slow_ctf.read(f"|a {' '.join(texts)}\n".encode(), [A._replace(dim=6)], double=True).samples
    assert sample["A"] == [[float(text) for text in texts]]


@given(valid_ctf_files())
def test_valid_files_give_no_errors_or_warnings(file: CtfFile) -> None:
    result = slow_ctf.read(file.data, file.streams, **file.options)
    assert not result.errors
    assert not result.warnings


@given(ctf_files())
def test_locations_are_inside_the_file(file: CtfFile) -> None:
    try:
        result = slow_ctf.read(file.data, file.streams, **file.options)
    except Refused as refused:
        assert 0 <= refused.offset <= len(file.data)
        return
    for problem in result.errors + result.warnings:
        assert 0 <= problem.offset <= len(file.data)
    for entry, errors in zip(result.index, result.errors_of, strict=True):
        assert all(entry.offset <= error.offset <= entry.offset + entry.size for error in errors)
    assert result.chunk_starts[0] == 0


def files_on_the_page() -> list[bytes]:
    page = (ROOT / "docs" / "formats" / "ctf.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0].encode() for block in page.split("```text\n")[1:]]
    return [block for block in blocks if block[:1] in b"0123456789|"]


def test_examples_of_the_page_give_the_results_of_the_page() -> None:
    opening, lines, ids, errors = files_on_the_page()
    words, tags = Stream("words", "word", 1000, True), Stream("tags", "tag", 14, True)
    x, y = Stream("x", "x", 3), Stream("y", "y", 2)

    tagged = slow_ctf.read(opening, [words, tags])
    assert [(entry.key, entry.length) for entry in tagged.index] == [(1, 3), (2, 1)]
    assert not tagged.errors + tagged.warnings

    by_line = slow_ctf.read(lines, [x])
    assert [entry.key for entry in by_line.index] == [0, 1, 2]
    assert not by_line.errors + by_line.warnings

    by_id = slow_ctf.read(ids, [x, y])
    assert [(entry.key, entry.length) for entry in by_id.index] == [(100, 3), (200, 1)]
    assert [len(by_id.samples[0][name]) for name in "xy"] == [3, 2]
    assert not by_id.errors + by_id.warnings

    broken = slow_ctf.read(errors, [x._replace(dim=1), y._replace(dim=1)])
    assert [(error.kind, error.key) for error in broken.errors] == [
        ("bad-number", 2),
        ("line-without-sample", 2),
        ("too-few-samples", 2),
        ("bad-number", 3),
        ("missing-stream", 3),
    ]

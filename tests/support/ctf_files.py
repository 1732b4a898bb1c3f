"""Hypothesis strategies for valid and broken files in the CNTK text format, and a form of results for comparisons.

A differential test looks like this:

    @given(ctf_files())
    def test_the_fast_reader_agrees_with_the_slow_reader(file):
        assert outcome(fast_read, file) == outcome(slow_ctf.read, file)

The strategies know the grammar only well enough to come close to each of its rules; the readers define the meaning.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypothesis import strategies as st
from slow.ctf import Refused, Result, Stream

# Prefixes of each other, names that differ in case, a name with a hash, and a name of odd printable characters.
ALIASES = ("a", "ab", "abc", "A", "b", "x#", "!~\x7f:", "7")
UNKNOWN = (b"c", b"aB", b"abcd", b"abcdefghij", b"#", b"## x", b"#|# y", b"c 1 2:3 \xff x", b"\xc3\xa9", b"")
LINE_ENDS = (b"\n", b"\n", b"\n", b"\n", b"\r\n", b" \n", b"\n\n", b"\r", b"")
HEADS = (b"", b"", b"", b"\xef\xbb\xbf", b"\xef\xbb", b"\xef", b"\n \n", b" \t\v\f\r", b"\xef\xbb\xbf\n", b"\xff\xfe")
# Bytes and texts that break files if they are misplaced or missing.
NASTY = (
    *(bytes([byte]) for byte in b"\x00\x01\t\n\v\f\r\x1f !#+-./019:;eE|\x7f\x80\xa0\xef\xff"),
    *b"|a,|ab ,|#,| ,||,\n\n,\r\n,1e,1.,-,:, 1:2 ,\xc2\xbd,nan,\n3 ".split(b","),
)
NUMBERS = (
    "0 1 -1 +1 1. -0 -0.0 00001 1.5e3 1E+05 1e-5 0.1 3.14159274 1e0 2e00000001 "
    # The edges of float32 and float64: overflow, the largest, ties, subnormals, underflow.
    "3.4028235e38 3.4028235677973366e38 3.4028235677973367e38 1e39 -1e39 1e309 1e400 1e99999999999999999999 "
    "340282356779733661637539395458142568447 18446744073709551615 18446744073709551616 9007199254740993 1e23 "
    "16777217 16777219 16777217.0000000001 0.5236994326114654541015625 1.1754944e-38 1e-45 "
    "7.006492321624085e-46 7.006492321624086e-46 1e-46 5e-324 1e-400 0e400 -0e400"
)
REFUSED_NUMBERS = ".5 -.5 1.e5 1e 1e+ --1 0x10 nan 1,5 1e5.5 1.2.3 1:2 + . 1-"


@dataclass(frozen=True)
class CtfFile:
    """A file to read: its bytes, the requested streams, and further arguments of `slow_ctf.read`."""

    data: bytes
    streams: list[Stream]
    options: dict[str, Any] = field(default_factory=dict)


def outcome(reader: Callable[..., Result], file: CtfFile) -> tuple[Any, ...]:
    """Return a reader's result in comparable form, or the kind and offset of its refusal."""
    try:
        return canonical(reader(file.data, file.streams, **file.options))
    except Refused as refused:
        return ("refused", refused.kind, refused.offset)


def canonical(result: Result) -> tuple[Any, ...]:
    """Return a result as nested tuples. They are equal if and only if the results are, to the bit and sign of zero."""
    return (
        tuple((entry[0], *map(int, entry[1:])) for entry in result.index),
        tuple(map(int, result.chunk_starts)),
        tuple(
            tuple((name, tuple(canonical_sample(sample) for sample in samples)) for name, samples in sequence.items())
            for sequence in result.samples
        ),
        tuple(tuple(tuple(error) for error in errors) for errors in result.errors_of),
        tuple(tuple(warning) for warning in result.warnings),
    )


def canonical_sample(sample: Any) -> tuple[Any, ...]:
    return tuple((int(v[0]), float(v[1]).hex()) if isinstance(v, tuple) else float(v).hex() for v in sample)


# -- parts -------------------------------------------------------------------------------------------------------------
# Strategies are created once, here, because creating them costs more than drawing from them.

RUNS_OF_DIGITS = st.tuples(st.sampled_from("0123456789"), st.integers(1, 400)).map(lambda run: run[0] * run[1])
DIGITS = st.one_of(
    st.text("0123456789", min_size=1, max_size=20),
    st.text("0123456789", min_size=20, max_size=60),
    st.lists(RUNS_OF_DIGITS, min_size=1, max_size=3).map(lambda runs: "".join(runs)[:400]),
)
EXPONENTS = st.tuples(st.sampled_from("eE"), st.integers(-420, 420)).map(lambda parts: f"{parts[0]}{parts[1]}")
ASSEMBLED_NUMBERS = st.tuples(
    st.sampled_from(["", "", "-", "+"]),
    DIGITS,
    st.one_of(st.just(""), DIGITS.map(lambda digits: "." + digits)),
    st.one_of(st.just(""), EXPONENTS),
).map("".join)
# GOOD_NUMBERS draws texts that the grammar accepts as numbers; ANY_NUMBERS also draws texts that it refuses.
GOOD_NUMBERS = st.one_of(
    st.integers(-999, 999).map(str),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: f"{value:.9g}"),
    st.sampled_from(NUMBERS.split()),
    ASSEMBLED_NUMBERS,
).map(str.encode)
ANY_NUMBERS = st.one_of(*[GOOD_NUMBERS] * 15, st.sampled_from(REFUSED_NUMBERS.split()).map(str.encode))

SPARSE_DIMS = st.sampled_from([1, 2, 5, 10, 2**31 - 1])
FEW = st.integers(0, 4)
SOME = st.integers(1, 4)
CHUNK_SIZES = st.integers(1, 200)
TENTH = st.integers(0, 9).map(lambda number: number == 7)
THIRD = st.integers(0, 2).map(lambda number: number == 1)
GAPS = st.sampled_from((*[b" "] * 14, b"\t", b"  ", b" \t ", b"", b"+", b"-"))  # "1-2" are two numbers
BETWEEN_ITEMS = st.sampled_from((*[b" "] * 10, b"\t", b"", b"\x00", b"\xa0", b"\r"))
COLONS = st.sampled_from((*[b":"] * 40, b"", b" :", b": ", b"::"))
COUNTS_OFF = st.sampled_from([0] * 12 + [-1, 1, 2, -4])
SOME_LINE_ENDS = st.sampled_from(LINE_ENDS)
SOME_HEADS = st.sampled_from(HEADS)
STEPS = st.lists(st.sampled_from([0, 0, 1, 1, 1, 2, -1, None]), min_size=1, max_size=8)
ODD_IDS = st.sampled_from(
    [b"0" * 30 + b"1", b"18446744073709551615", b"9" * 18, b"18446744073709551616", b"9" * 20, b"x"]
)
WORDS = st.sampled_from([b"utt", b"u.1-", b"\xc3\xa9", b"0", b"x|"])
EXTRAS = st.lists(st.sampled_from(UNKNOWN), max_size=2)
COMMENTS = st.sampled_from([b"", b" |# comment", b"\t", b" |# a pipe |# in it"])
NUM_MUTATIONS = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 6])
LENGTHS_TAKEN_OUT = st.sampled_from([0, 0, 1, 1, 2, 5, 20])
SOME_NASTY = st.sampled_from((*NASTY, b"", None))


@cache
def indices(dim: int) -> st.SearchStrategy[bytes]:
    good = st.integers(0, dim - 1).map(str)
    edge = st.sampled_from(
        [str(dim - 1), f"000{dim - 1}", str(dim), str(dim + 1), "", "-1", "1" * 11, str(2**64), "3" * 20]
    )
    return st.one_of(*[good] * 9, edge).map(str.encode)


@cache
def below(bound: int) -> st.SearchStrategy[int]:
    return st.integers(0, bound - 1)


@st.composite
def streams(draw: st.DrawFn) -> list[Stream]:
    """Draw one to four streams, at most one of which defines the minibatch size."""
    aliases = draw(st.lists(st.sampled_from(ALIASES), min_size=1, max_size=4, unique=True))
    definer = draw(st.sampled_from([None, None, None, *aliases]))
    sparse = [draw(st.booleans()) for _ in aliases]
    dims = [draw(SPARSE_DIMS if is_sparse else SOME) for is_sparse in sparse]
    return [
        Stream(f"stream {place}", alias, dims[place], sparse[place], alias == definer)
        for place, alias in enumerate(aliases)
    ]


STREAMS = streams()


def sample(draw: st.DrawFn, stream: Stream) -> bytes:
    """Draw a sample of a stream as text, sometimes with too many or too few values or blanks."""
    text = b"|" + stream.alias.encode()
    for place in range(draw(FEW) if stream.is_sparse else stream.dim + draw(COUNTS_OFF)):
        gap = draw(GAPS)
        text += gap if place > 0 or gap not in (b"", b"+", b"-") else b" "
        text += draw(indices(stream.dim)) + draw(COLONS) if stream.is_sparse else b""
        text += draw(ANY_NUMBERS)
    return text


def line(draw: st.DrawFn, configured: list[Stream]) -> bytes:
    """Draw a line after its id: samples in any order, sometimes missing or repeated; unknown names; comments."""
    chosen = draw(st.permutations(configured))
    if draw(THIRD):
        chosen = draw(st.lists(st.sampled_from(configured), max_size=len(configured) + 1))
    items = [sample(draw, stream) for stream in chosen]
    if draw(THIRD):
        for extra in draw(EXTRAS):
            items.insert(draw(below(len(items) + 1)), b"|" + extra)
    return b" " + b"".join(item + draw(BETWEEN_ITEMS) for item in items)


def ids(draw: st.DrawFn) -> list[bytes]:
    """Draw the ids of lines: mostly ascending, sometimes missing, repeated, out of order or at the limits."""
    number, found = draw(FEW), [b"0"]
    for step in draw(STEPS):
        number = max(0, number + (step or 0))
        found.append(b"" if step is None else str(number).encode())
    if draw(TENTH):
        found[draw(below(len(found)))] = draw(ODD_IDS)
    return found


def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Insert, remove, replace or double bytes at up to six positions."""
    for _ in range(draw(NUM_MUTATIONS)):
        place, length, put_in = draw(below(len(data) + 1)), draw(LENGTHS_TAKEN_OUT), draw(SOME_NASTY)
        put_in = data[place : place + length] * 2 if put_in is None else put_in
        data = data[:place] + put_in + data[place + length :]
    return data


# -- files -------------------------------------------------------------------------------------------------------------


@st.composite
def ctf_files(draw: st.DrawFn) -> CtfFile:
    """Draw files that are nearly valid or very broken, with all options."""
    configured = draw(STREAMS)
    options: dict[str, Any] = {"chunk_size_in_bytes": draw(CHUNK_SIZES)}
    starts = ids(draw)
    if draw(THIRD):
        starts = [b""] * len(starts)  # line mode
    elif draw(TENTH):
        options["symbolic_ids"] = True
        starts = [draw(WORDS) + start if start else b"" for start in starts]
    if draw(TENTH):
        options["skip_sequence_ids"] = True
    data = b"".join(start + line(draw, configured) + draw(SOME_LINE_ENDS) for start in starts)
    data = mutated(draw, draw(SOME_HEADS) + data)
    if draw(THIRD):
        data = data[: len(data) - draw(below(min(len(data), 60) + 1))]  # cut near the last line
    elif draw(THIRD):
        data = data.rstrip(b"\r\n")
    return CtfFile(data, configured, options)


@st.composite
def valid_ctf_files(draw: st.DrawFn) -> CtfFile:
    """Draw files without errors or warnings: all sequences have all streams, and as many lines as the longest."""
    configured = draw(STREAMS)
    in_id_mode = draw(st.booleans())
    data = b""
    for key in range(draw(SOME)):
        count = draw(SOME) if in_id_mode else 1
        longest = [s for s in configured if s.defines_mb_size] or [draw(st.sampled_from(configured))]
        lengths = {s.alias: count if s in longest else 1 + draw(below(count)) for s in configured}
        for place in range(count):
            data += str(key).encode() if in_id_mode else b""
            for stream in draw(st.permutations(configured)):
                if place < lengths[stream.alias]:
                    data += b" |" + stream.alias.encode()
                    for _ in range(draw(FEW) if stream.is_sparse else stream.dim):
                        index = str(draw(below(stream.dim))).encode() + b":" if stream.is_sparse else b""
                        data += b" " + index + draw(GOOD_NUMBERS)
                    data += draw(COMMENTS)
            data += draw(st.sampled_from([b"\n", b"\r\n"]))
    return CtfFile(data, configured, {"chunk_size_in_bytes": draw(CHUNK_SIZES)})

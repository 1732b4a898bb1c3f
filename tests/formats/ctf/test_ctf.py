"""The fast reader of the CNTK text format against the slow one, on every path."""

import contextlib
import dataclasses
import gzip
import itertools
import lzma
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import ConfigError, CorpusError, CTFDeserializer, FormatError, StreamDef, StreamDefs, _core
from cntkio.cli import main
from cntkio.formats import NOTHING_AHEAD, Ahead, Opening
from cntkio.formats.contract import Corpus
from cntkio.formats.ctf import infer
from cntkio.formats.ctf.findings import ParserFindings
from cntkio.formats.pieces import read_corpus
from cntkio.storage import text_input
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow import ctf as slow_ctf
from support.ctf_files import CtfFile, canonical, ctf_files, valid_ctf_files
from support.ctf_reader import ERRORS, deserializer, places_of, samples_of
from support.rounds import rounds, step

NUM_ERRORS = _core.CTF_NUM_ERROR_KINDS


def problem(finding: Any, parsed: Any, corpus: Corpus) -> slow_ctf.Problem:
    key = corpus.table.keys[parsed.first_sequence + finding.sequence]
    stream = None if finding.stream is None else corpus.streams[finding.stream].name
    return slow_ctf.Problem(ERRORS[finding.kind], parsed.first_byte + finding.offset, key, stream)


def shown(key: Any) -> Any:
    """Return a key as users see it: bytes that are not UTF-8 are escaped."""
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else key


def first_ten(problems: list[slow_ctf.Problem]) -> list[slow_ctf.Problem]:
    seen: Counter[str] = Counter()
    kept = []
    for one in problems:
        seen[one.kind] += 1
        if seen[one.kind] <= 10:
            kept.append(one)
    return kept


@contextlib.contextmanager
def sizes(block: int, piece: int, threads: int) -> Any:
    """Work in tiny blocks and pieces, so that small files take the paths of large files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cntkio.storage.text_input.BLOCK", block)
        patch.setattr("cntkio.formats.ctf.corpus.PIECE", piece)
        patch.setattr("cntkio.formats.ctf.index.PART", piece)
        patch.setenv("CNTKIO_NUM_THREADS", str(threads))
        yield


def by_name(problems: list[slow_ctf.Problem], names: list[str]) -> list[slow_ctf.Problem]:
    """Missing streams of a sequence in the order of stream numbers, which is by name."""
    order = {name: number for number, name in enumerate(sorted(names, key=lambda name: (name.lower(), name)))}
    runs: list[list[slow_ctf.Problem]] = []
    for one in problems:
        last = runs[-1][-1] if runs else None
        if last is not None and one.kind == last.kind == "missing-stream" and one.offset == last.offset:
            runs[-1].append(one)
        else:
            runs.append([one])
    return [one for run in runs for one in sorted(run, key=lambda p: order.get(p.stream or "", -1))]


def check_ahead(ahead: Corpus, corpus: Corpus, file: CtfFile) -> int:
    """Check that chunks parsed with the index equal loaded chunks; return their number."""
    table, plain = ahead.index, corpus.index
    assert places_of(ahead) == places_of(corpus)
    for name in ("keys", "lengths", "chunk_starts"):
        assert getattr(table.table, name).tolist() == getattr(plain.table, name).tolist()
    parsed = ahead.take_parsed()
    for number, loaded in parsed.items():
        expected = corpus.load(number)
        assert (loaded.chunk_id, loaded.findings, expected.findings) == (number, None, None)
        assert canonical(slow_ctf.Result([], [], samples_of(loaded.chunk, ahead, file))) == canonical(
            slow_ctf.Result([], [], samples_of(expected.chunk, corpus, file))
        )
    assert ahead.take_parsed() == {}
    ahead.close()
    return len(parsed)


def compare(file: CtfFile, folder: Path, budget: int) -> None:
    path = folder / "a.ctf"
    path.write_bytes(file.data)
    words = file.options.get("symbolic_ids", False)
    try:
        slow = slow_ctf.read(file.data, file.streams, **file.options)
    except slow_ctf.Refused as refused:
        for ahead in (NOTHING_AHEAD, Ahead(1 << 40)):
            with pytest.raises((FormatError, CorpusError)) as error:
                deserializer(path, file).open(Opening(text_keys=words, ahead=ahead))
            if isinstance(error.value, FormatError) and refused.kind not in ("no-sequence-id", "no-sequence"):
                assert error.value.byte == refused.offset
        return
    corpus = deserializer(path, file, max_errors=-1).open(Opening(text_keys=words))
    table = corpus.table
    placed = places_of(corpus)
    assert [(shown(entry.key), *entry[1:]) for entry in slow.index] == list(
        zip(
            table.keys.tolist(),
            [begin for begin, _ in placed],
            [end - begin for begin, end in placed],
            table.lengths.tolist(),
            strict=True,
        )
    )
    assert table.chunk_starts.tolist() == [*slow.chunk_starts, len(slow.index)]
    for ahead in (Ahead(1 << 40), Ahead(100), Ahead(1, 2)):
        check_ahead(deserializer(path, file, max_errors=-1).open(Opening(text_keys=words, ahead=ahead)), corpus, file)
    names = [stream.name for stream in file.streams]
    parsing = [one for one in slow.warnings if one.kind in ERRORS]
    fast_samples = []
    for number in range(table.num_chunks):
        loaded = corpus.load(number)
        fast_samples += samples_of(loaded.chunk, corpus, file)
        begin, end = table.chunk_starts[number : number + 2]
        first_byte = slow.index[begin].offset
        last_byte = slow.index[end - 1].offset + slow.index[end - 1].size
        errors = by_name([one for errors in slow.errors_of[begin:end] for one in errors], names)
        warned = [one for one in parsing if first_byte <= one.offset < last_byte]
        findings = loaded.findings or ParserFindings([], [], None, 0, 0)
        found = [problem(finding, findings, corpus) for finding in findings.first]
        expected = [[one._replace(key=shown(one.key)) for one in first_ten(some)] for some in (errors, warned)]
        assert sorted(found) == sorted(itertools.chain(*expected))
        assert [one for one in found if one.kind not in ERRORS[NUM_ERRORS:]] == expected[0]
        counts = Counter(one.kind for one in errors + warned)
        assert {ERRORS[kind]: count for kind, count in enumerate(findings.counts) if count} == counts
        corpus.account_for(loaded)
    corpus.close()
    slow_samples = slow_ctf.Result(slow.index, [], slow.samples)
    assert canonical(slow_ctf.Result(slow.index, [], fast_samples))[2] == canonical(slow_samples)[2]

    # The budget: the first error beyond it is the error that the slow reader counts there.
    errors = by_name(slow.errors, names)
    corpus = deserializer(path, file, max_errors=budget).open(Opening(text_keys=words))

    def settle_all() -> None:
        for number in range(table.num_chunks):
            corpus.account_for(corpus.load(number))

    if budget < len(errors):
        with pytest.raises(FormatError) as raised:
            settle_all()
        last_straw = errors[budget]
        assert raised.value.byte == last_straw.offset
        assert raised.value.sequence == shown(last_straw.key)
        assert raised.value.stream == last_straw.stream or last_straw.stream is None
        assert raised.value.line == file.data[: last_straw.offset].count(b"\n") + 1
        assert raised.value.column == last_straw.offset - (file.data.rfind(b"\n", 0, last_straw.offset) + 1) + 1
    else:
        settle_all()
    corpus.close()


@settings(max_examples=rounds(200), suppress_health_check=list(HealthCheck))
@given(ctf_files(), st.integers(0, 12), st.integers(1, 60), st.integers(1, 80), st.integers(1, 3))
def test_the_fast_reader_agrees_with_the_slow_reader(
    module_folder: Path, file: CtfFile, budget: int, block: int, piece: int, threads: int
) -> None:
    with sizes(block, piece, threads):
        compare(file, module_folder, budget)


@settings(max_examples=rounds(100), suppress_health_check=list(HealthCheck))
@given(valid_ctf_files())
def test_valid_files_are_read_without_warnings(module_folder: Path, file: CtfFile) -> None:
    compare(file, module_folder, 0)


@pytest.mark.parametrize("in_lines", [False, True])
def test_chunks_of_a_large_file_are_parsed_while_it_is_indexed(tmp_path: Path, in_lines: bool) -> None:
    lines = []
    for number in range(10_000):
        key = "" if in_lines else f"{number // (1 + number % 7)}\t"
        lines.append(
            f"{key}|a {number} 2.5 -3 |ab {number % 9}:1 |b 1 {'|# ' + 'x' * 900 if number % 997 == 0 else ''}\n"
        )
    lines[7500] = lines[7500].replace("2.5", "2.5 4" if in_lines else "2.5x")
    file = CtfFile("".join(lines).encode(), SAMPLE_STREAMS, {})
    path = tmp_path / "a.ctf"
    path.write_bytes(file.data)
    options: dict[str, Any] = {"chunk_size_in_bytes": 25_000, "max_errors": -1}
    corpus = deserializer(path, file, **options).open()
    with sizes(12_500, 2500, 2):
        corpora = deserializer(path, file, **options)
        opened = [corpora.open(Opening(ahead=ahead)) for ahead in (Ahead(1 << 40), Ahead(30_000))]
        num_parsed = [check_ahead(one, corpus, file) for one in opened]
    num_before = int(np.searchsorted(corpus.table.chunk_starts, 6250 if in_lines else 2000))
    assert corpus.table.num_chunks > num_parsed[0] >= num_before > num_parsed[1] > 0
    assert not deserializer(path, file, **options).open(Opening(ahead=Ahead(1 << 40, num_before))).take_parsed()


@pytest.mark.parametrize("data", [b"a |a 1\nb\x00 |a 1\n", b"\x00a |a 1\n", b"a |a 1\nb\x00c |a 1\n"])
def test_a_nul_byte_in_a_word_is_refused_with_its_place(tmp_path: Path, data: bytes) -> None:
    file = CtfFile(data, SAMPLE_STREAMS, {"symbolic_ids": True})
    compare(file, tmp_path, 0)
    with pytest.raises(FormatError, match="a NUL byte in a sequence id") as raised:
        deserializer(tmp_path / "a.ctf", file).open(Opening(text_keys=True))
    assert raised.value.byte == data.index(0)


def test_a_word_of_more_than_4096_bytes_is_refused_with_its_place(tmp_path: Path) -> None:
    text, words = b"%b |b 1\n%b |b 2\n", {"symbolic_ids": True}
    streams = SAMPLE_STREAMS[2:]
    compare(CtfFile(text % (b"u" * 4096, b"v" * 4095), streams, words), tmp_path, 0)
    compare(CtfFile(text % (b"u", b"v") + b"w" * 5000, streams, words), tmp_path, 0)
    file = CtfFile(text % (b"u", b"v" * 4097), streams, words)
    compare(file, tmp_path, 0)
    with pytest.raises(FormatError, match="line 2.*: a sequence id of more than 4096 bytes") as raised:
        deserializer(tmp_path / "a.ctf", file).open(Opening(text_keys=True))
    assert raised.value.byte == len(b"u |b 1\n")


@pytest.mark.parametrize("word", ["a", "b", "a "])
def test_a_word_up_to_the_end_of_the_file_is_no_line(word: str, tmp_path: Path) -> None:
    compare(CtfFile(f"a |b 1\n{word}".encode(), SAMPLE_STREAMS[2:], {"symbolic_ids": True}), tmp_path, 0)


def test_many_streams_are_read_as_the_slow_reader_reads_them(tmp_path: Path) -> None:
    streams = [slow_ctf.Stream(f"S{number}", f"s{number}", 1) for number in range(100)]
    chance = random.Random(7)
    lines = []
    for key in range(12):
        names = [f"s{number}" for number in range(100)] + ["s", "s100", "unknown", "#", ""]
        chance.shuffle(names)
        lines.append(f"{key} " + " ".join(f"|{name} {len(name)}" for name in names) + "\n")
    compare(CtfFile("".join(lines).encode(), streams, {}), tmp_path, 3)


# -- every prefix, every flipped bit -----------------------------------------------------------------------------------

SAMPLES = {
    "ids": (
        b"7 |a 1 2.5 -3e2 |ab 0:1 9:2 |# a comment\n7 |a 1 2 3\t|ab\n|b 5\n12\t|ab 3:1e-3 |a 0.1 0 9 |b 16777217.5\n",
        {},
    ),
    "lines": (b"\xef\xbb\xbf \n|a 1 2 3 |ab 1:2\r\n|# only |# a comment\n5 |ab |a 1-2+3 |zz 4 |b 2\n", {}),
    "skip": (b"1 |a 1 2 3 |b 1 |ab 4:5 5:4\n1 |a 1\xc2\xbd|b|ab 1:1\n", {"skip_sequence_ids": True}),
}
SAMPLE_STREAMS = [
    slow_ctf.Stream("A", "a", 3),
    slow_ctf.Stream("AB", "ab", 10, is_sparse=True),
    slow_ctf.Stream("B", "b", 1),
]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_prefix_is_read_as_the_slow_reader_reads_it(name: str, tmp_path: Path) -> None:
    data, options = SAMPLES[name]
    for size in range(len(data) + 1):
        compare(CtfFile(data[:size], SAMPLE_STREAMS, {**options, "chunk_size_in_bytes": 40}), tmp_path, 1)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_flipped_bit_is_read_as_the_slow_reader_reads_it(name: str, tmp_path: Path) -> None:
    data, options = SAMPLES[name]
    for number in range(0, 8 * len(data), step(7)):
        at, bit = divmod(number, 8)
        flipped = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
        compare(CtfFile(flipped, SAMPLE_STREAMS, {**options, "chunk_size_in_bytes": 1 << 20}), tmp_path, 2)


# -- options -----------------------------------------------------------------------------------------------------------

X = StreamDefs(x=StreamDef(field="x", shape=2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CTFDeserializer("a", X, chunk_size_in_bytes=0), "chunk_size_in_bytes is 0; expected at least 1"),
        (lambda: CTFDeserializer("a", StreamDefs(x=StreamDef(field="x", shape=0))), "'x': dimension 0; expected 1 to"),
        (lambda: CTFDeserializer("a", StreamDefs(x=StreamDef(field="x", shape=2**31))), "dimension 2147483648"),
        (lambda: CTFDeserializer("a", StreamDefs(x=StreamDef(shape=2))), "stream name for key x must be specified"),
        (lambda: CTFDeserializer("a", StreamDefs(x=StreamDef(field="x"))), "'x' has no shape"),
        (lambda: CTFDeserializer("a", StreamDefs()), "no streams"),
        (lambda: CTFDeserializer("a", X, dtype="float16"), "dtype is float16; expected float32 or float64"),
        (
            lambda: CTFDeserializer("a", StreamDefs(x=StreamDef(field="x", shape=1), y=StreamDef(field="x", shape=1))),
            "'x' and 'y' have the same name 'x' in the file",
        ),
        (
            lambda: CTFDeserializer(
                "a",
                StreamDefs(
                    x=StreamDef(field="x", shape=1, defines_mb_size=True),
                    y=StreamDef(field="y", shape=1, defines_mb_size=True),
                ),
            ),
            "only a single stream may define the minibatch size, but these do: 'x', 'y'",
        ),
        (lambda: CTFDeserializer("a", X).__setitem__("skipSequenceIds", "yes"), "'yes'; expected a truth value"),
        (lambda: CTFDeserializer("a", X).__setitem__("maxErrors", "1.5"), "'1.5'; expected a whole number"),
        (lambda: CTFDeserializer("a", X).__setitem__("chunkSizeInBytes", 0), "chunk_size_in_bytes is 0"),
    ],
)
def test_refuses_impossible_options(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()


def test_cntks_options_are_set_by_their_names_in_any_case() -> None:
    one = CTFDeserializer("a", X)
    one["chunksizeinbytes"] = "64"
    one["MAXERRORS"] = 3
    one["skipSequenceIds"] = "T"
    one["cacheIndex"] = True
    assert (one.chunk_size_in_bytes, one.max_errors, one.skip_sequence_ids, one.cache_index) == (64, 3, True, True)
    one["maxErrors"] = "default"
    assert one.max_errors == one["maxErrors"] == 0
    assert (one["file"], one["input"]) == ("a", X)


def test_an_unknown_option_suggests_a_similar_name(caplog: pytest.LogCaptureFixture) -> None:
    CTFDeserializer("a", X)["chunkSizeInByte"] = 64
    assert "option 'chunkSizeInByte' is unknown and ignored; did you mean 'chunkSizeInBytes'?" in caplog.text


def test_evaluating_the_repr_of_a_deserializer_makes_it_again() -> None:
    one = CTFDeserializer("a b.ctf", X, max_errors=5, dtype=np.float64, strict=True)
    again = eval(repr(one))
    assert repr(again) == repr(one)
    assert dataclasses.asdict(again) == dataclasses.asdict(one)


# -- errors and warnings -----------------------------------------------------------------------------------------------


def read(data: bytes, folder: Path, streams: StreamDefs = X, **options: Any) -> Any:
    path = folder / "train.ctf"
    path.write_bytes(data)
    return cntkio.read_ctf(path, streams, **options)


XYS = StreamDefs(
    x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=1), s=StreamDef(field="s", shape=9, is_sparse=True)
)


@pytest.mark.parametrize(
    ("line", "column", "stream", "words"),
    [
        (b"|x 1 2 |y 1e |s 1:1", 13, "y", "byte 0x20 in a number"),
        (b"|x 1 2 |y 1 |s x:1", 16, "s", "'x' where an index should be"),
        (b"|x 1 2 |y 1 |s 9:1", 16, "s", "index 9, but the dimension is 9; expected 0 to 8"),
        (b"|x 1 2 |y 1 |s 3 1", 17, "s", "byte 0x20 after index 3; expected ':'"),
        (b"|x 1 2 3 |y 1 |s 1:1", 8, "x", "3 values, but the dimension is 2"),
        (b"|x 1 2 \xc3 junk |y 1 |s 1:1", 10, None, "'j' where a sample should start"),
        (b"|x 1 2 | |y 1 |s 1:1", 8, None, "a pipe without a name"),
        (b"|x 1 2 |y 1", 1, "s", "no sample of this stream in the sequence"),
        (b"|x 1 2 |y 1 |s 1:1 |x 3 4", 1, "x", "2 samples, but the sequence has 1 line"),
    ],
)
def test_errors_name_their_location_and_the_expectation(
    tmp_path: Path, line: bytes, column: int, stream: str | None, words: str
) -> None:
    data = b"|x 0 0 |y 0 |s 0:1\n" + line + b"\n"
    with pytest.raises(FormatError) as error:
        read(data, tmp_path, XYS)
    raised = error.value
    assert (raised.path, raised.line, raised.column, raised.byte, raised.sequence, raised.stream) == (
        str(tmp_path / "train.ctf"),
        2,
        column,
        19 + column - 1,
        1,
        stream,
    )
    assert words in str(raised)
    assert str(raised).startswith(f"{raised.path}, line 2, column {column} (byte {raised.byte}), sequence 1")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "empty except for a byte order mark"),
        (b" \n\t\r\n", "contains only white space"),
        (b"\xff\xfe|\0", "UTF-16"),
        (b"-1 |x 1 2\n", "'-' where the first sequence id or a pipe should be"),
        (b"123", "nothing except a number"),
        (b"1 |x 1 2\n99999999999999999999 |x 1 2\n", "line 2, column 1 (byte 9): a sequence id of 2^64 or more"),
    ],
)
def test_refuses_files_with_an_impossible_beginning(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=re.escape(words)):
        read(data, tmp_path)


def test_exceeding_the_error_budget_reports_the_budget(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=re.escape("(error 2, and max_errors is 1)")):
        read(b"|x 1 2 a |x 3 4\n|x 5 6 b |x 7 8\n", tmp_path, max_errors=1)


def test_the_pieces_of_a_chunk_share_one_budget_of_errors(tmp_path: Path) -> None:
    with sizes(block=64, piece=20, threads=4):
        for budget in (1, 9, 10, 11, 25, 39):
            with pytest.raises(
                FormatError, match=f"line {budget + 1}, .*error {budget + 1}, and max_errors is {budget}"
            ):
                read(b"|x 1 2 |\n" * 40, tmp_path, max_errors=budget)
        assert read(b"|x 1 2 |\n" * 40, tmp_path, max_errors=40).num_sequences == 40


DEFINING = StreamDefs(x=StreamDef(field="x", shape=2, defines_mb_size=True))


@pytest.mark.parametrize(
    ("data", "streams", "place", "words"),
    [
        (
            b"1 |x 1 2\n2 |x 3 4\n1 |x 5 6\n",
            X,
            "line 3, column 1 (byte 18), sequence 1: ",
            "an earlier sequence in the file",
        ),
        (b"|x 1 2\xc3\xa9\n|x 1 2\n", X, "line 1, column 7 (byte 6), sequence 0, stream 'x': ", "0xC3 separates"),
        (b"1 |x 1 2\n\xd9\xa2 |x 3 4\n", X, "line 2, column 1 (byte 9), sequence 1: ", "byte 0xD9 separates"),
        (
            b"|x 1\n|x 1 2\n",
            X,
            "line 1, column 1 (byte 0), sequence 0, stream 'x': ",
            "1 value, but the dimension is 2",
        ),
        (b"|x 1 2\n|y 3\n", DEFINING, "line 2, column 1 (byte 7), sequence 1: ", "is left out"),
        (b"1 |x 1 2\n2 |y 3\n", DEFINING, "line 2, column 1 (byte 9), sequence 2: ", "is left out"),
    ],
)
def test_warns_where_cntk_is_silent_and_raises_if_strict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, streams: StreamDefs, place: str, words: str
) -> None:
    read(data, tmp_path, streams)
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert place in record.getMessage() and words in record.getMessage()
    with pytest.raises(FormatError) as error:
        read(data, tmp_path, streams, strict=True)
    assert place in str(error.value) and words in str(error.value)


def test_ten_errors_of_a_kind_are_logged_and_then_their_total(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sizes(block=64, piece=64, threads=2):
        read(b"|x 1\n" * 1000, tmp_path, chunk_size_in_bytes=100)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 11
    assert [f"line {number}, " in message for number, message in enumerate(messages[:10], 1)] == [True] * 10
    assert messages[10].endswith("train.ctf: short dense sample: 1000 in all")


def test_forgiven_errors_are_counted_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(b"|x 1 2 |x 1 a\n|x 1 b |x 1 2\njunk |x 1 2\n")
    with cntkio.MinibatchSource(CTFDeserializer(path, X, max_errors=9), max_sweeps=1, randomize=False) as source:
        assert len(list(source.minibatches(1))) == 3
        assert source.error_counts == {"bad number": 2, "junk": 1}


# -- the index ---------------------------------------------------------------------------------------------------------


def test_a_file_that_shrinks_while_it_is_indexed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(b"|x 1 0\n" * 100)
    index = _core.ctf_index

    def shrinking(*arguments: Any) -> Any:
        path.write_bytes(b"|x 1 0\n" * 50)
        return index(*arguments)

    monkeypatch.setattr(_core, "ctf_index", shrinking)
    with pytest.raises(CorpusError, match=r"changed while in use \(700 bytes when opened, 350 now\)"):
        CTFDeserializer(str(path), X).open()


def test_long_files_are_indexed_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(b"".join(b"%d |x %d 0\n" % (key // 7, key) for key in range(200)))
    whole = CTFDeserializer(str(path), X).open().table
    monkeypatch.setattr(text_input, "WINDOW_OF_FILE", 100)
    table = CTFDeserializer(str(path), X).open().table
    assert table.keys.tolist() == whole.keys.tolist() == list(range(29))
    assert table.lengths.tolist() == whole.lengths.tolist() == [7] * 28 + [4]


# -- inference ---------------------------------------------------------------------------------------------------------


def test_streams_are_inferred_by_name_form_and_dimension(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(b"1 |x 1 2 3 |# |y 4 |# c\n1 |s 7:1 2:2|e\n2 |x 1 |e |s\n2 |x 1 2 3 4 |A-b 1.5")
    expected = {"x": (4, False), "y": (1, False), "s": (8, True), "e": (1, False), "A-b": (1, False)}
    for block in (1, 7, 1 << 20):
        with sizes(block, 1, 2):
            found = cntkio.infer_streams(path)
        assert {name: (stream.dim, stream.is_sparse) for name, stream in found.items()} == expected


def test_refuses_to_infer_streams_of_other_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"once upon a time\n")
    with pytest.raises(FormatError, match="a text without a pipe"):
        cntkio.infer_streams(path)
    path.write_bytes(b"".join(b"|n%d 1\n" % number for number in range(10_002)))
    with pytest.raises(FormatError, match="more than 10000 names"):
        cntkio.infer_streams(path)


def test_another_kind_of_file_is_named_with_its_reader(tmp_path: Path) -> None:
    text = b"".join(b"|x %d |y %d:1\n" % (number, number) for number in range(1000))
    path = tmp_path / "a.ctf"  # its name does not matter
    cntkio.write_cbf(tmp_path / "a.cbf", {"x": np.ones((3, 2), np.float32)})
    for content, words in (
        (gzip.compress(b"nib_ktnc" + text), "this is a file compressed with gzip: unpack it"),
        (lzma.compress(text), "compressed with xz: unpack it"),
        (b"PAR1" + text, "this is a Parquet file: use cntkio.arrow.ArrowDeserializer"),
        ((tmp_path / "a.cbf").read_bytes(), "CNTK binary corpus .* use CBFDeserializer"),
        (b"#!MLF!#\n" + text, "this is an HTK label file .* use HTKMLFDeserializer"),
        (b"|x 1\0\n", "not a text, for it has zero bytes"),
    ):
        path.write_bytes(content)
        for call in (cntkio.infer_streams, cntkio.read_ctf):
            with pytest.raises(FormatError, match=words) as caught:
                call(path)
            assert str(caught.value).startswith(f"{path}, byte 0")
    for name in ("a.scp", "a.cntk"):  # the name of the file does not matter
        (tmp_path / name).write_bytes(text)
        assert list(cntkio.infer_streams(tmp_path / name)) == ["x", "y"]


def error_of(path: Path, stream: Any) -> str:
    with pytest.raises(FormatError) as caught:
        read_all(path, stream)
    return str(caught.value)


def read_all(path: Path, stream: Any) -> None:
    with contextlib.closing(CTFDeserializer(path, StreamDefs(x=stream)).open()) as corpus:
        for chunk_id in range(corpus.table.num_chunks):
            corpus.account_for(corpus.load(chunk_id))


@pytest.mark.parametrize(
    ("text", "stream", "fitting"),
    [
        (b"|x 1:1\n" * 30_000 + b"|x 938:1\n", (9, True), (939, True)),
        (b"|x 9:1\n" * 30_000 + b"|x 938:1\n", (9, True), (939, True)),
        (b"|x 1 2\n" * 30_000, (1, False), (2, False)),
        (b"|x 1:1\n|x 7:2\n", (3, False), (8, True)),
        (b"|x 1 2\n", (3, True), (2, False)),
    ],
)
def test_an_advised_definition_reads_the_whole_file(
    text: bytes, stream: tuple[int, bool], fitting: tuple[int, bool], tmp_path: Path
) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(text)
    advised = StreamDef("x", *fitting)
    assert error_of(path, StreamDef("x", *stream)).endswith(f"the file would fit {advised!r}")
    read_all(path, advised)


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        (b"|x 1 # c\n", (1, False)),
        (b"|x -1:1\n", (3, True)),
        (b"|x 1 2 3\n|x !\n", (2, False)),
        (b"|x 1 2\n" * 30_000 + b"|x 1 2 3\n", (2, False)),
        (b"|x 1\n" * 1000 + b"|x" + b" 1" * 100_000, (1, False)),
    ],
)
def test_a_definition_that_would_not_help_is_not_advised(text: bytes, stream: tuple[int, bool], tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(text + b"\n")
    assert "would fit" not in error_of(path, StreamDef("x", *stream))


def test_a_large_file_is_not_read_for_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(b"|x 1 2\n" * 9)
    monkeypatch.setattr(infer, "CHECKED_BYTES", 8)
    error = error_of(path, StreamDef("x", 1))
    assert error.endswith(f"cntkio.infer_streams({str(path)!r}) finds what fits the file")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            b"|x 1 |y 2\n|y 3 |z 1\n|x 1\n",
            "line 2, .* the line has 'y', 'z'; ask for these streams, too, or forgive such errors .subset=True",
        ),
        (b"1 |x 1 |y 2\n1 |y 3\n2 |x 1\n", "line 2, .* the line has 'y'; ask for"),
        (b"1 |x 1\n2 |x ! |y 1\n", "bad number|in a number"),
        (b"1 |x 1\n1 \n2 |x 1\n", "a line without a sample; expected a sample of at least one stream$"),
    ],
)
def test_a_line_without_the_requested_streams_names_its_own_streams(text: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(text)
    assert re.search(words, error_of(path, StreamDef("x", 1)))


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        (b"|x 1 |y 2\n|y 3\n|x 4 |y 3\n", [0, 1, 1, 2]),
        (b"1 |x 1 |y 2\n1 |y 3\n2 |y 3\n2 |x 4\n3 |y 1\n", [0, 1, 2, 2]),
    ],
)
def test_one_stream_of_several_is_read_alone(text: bytes, offsets: list[int], tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(text)
    streams = StreamDefs(x=StreamDef("x", 1))
    data = cntkio.read_ctf(path, streams)["x"]
    assert data.offsets.tolist() == offsets and data.values.tolist() == [[1], [4]]
    with pytest.raises(FormatError):
        read_all(path, streams.x)
    path.write_bytes(text.replace(b"4", b"!"))
    with pytest.raises(FormatError, match="in a number"):
        cntkio.read_ctf(path, streams)
    with pytest.raises(FormatError, match="did you mean 'x'"):
        cntkio.read_ctf(path, StreamDefs(x=StreamDef("X", 1)))


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("before", [b"", b"1 |x 1 |y 2\n" * 40])
def test_a_stream_twice_on_a_line_causes_a_warning(before: bytes, is_sparse: bool, tmp_path: Path) -> None:
    text = before + b"7 |x 1 |y 3\n7 |x 2 |y 4 |x 3\n7 |y 5\n8 |x 1 |y 1\n"
    if is_sparse:
        text = re.sub(rb"(?<= )\d(?=[ \n])", rb"\g<0>:1", text)
    path = tmp_path / "a.ctf"
    path.write_bytes(text)
    streams = StreamDefs({name: StreamDef(name, 9 if is_sparse else 1, is_sparse) for name in ("x", "y")})
    with contextlib.closing(CTFDeserializer(path, streams).open(Opening(ahead=Ahead(1 << 20)))) as corpus:
        loaded = corpus.take_parsed().get(0) or corpus.load(0)
        corpus.account_for(loaded)
        assert corpus.report.warnings == {"stream twice on a line": 1}
        assert not corpus.report.errors
    with pytest.raises(FormatError, match="stream 'x': a second sample of this stream on the line") as caught:
        cntkio.read_ctf(path, streams, strict=True)
    assert caught.value.byte == text.rindex(b"|x", 0, text.index(b"8 |x"))


# -- lines without content ---------------------------------------------------------------------------------------------

EMPTY_LINES = (b"\n", b" \t\r\n", b"|# a comment\n", b"  |#\n", b"|# one|# two\n")


@pytest.mark.parametrize("empty", EMPTY_LINES)
@pytest.mark.parametrize("ahead", [0, 1 << 20])
def test_lines_without_content_are_no_sequences(empty: bytes, ahead: int, tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(empty * 2 + b"|x 1 2\n" + empty + b"|x 3 4\n" + empty * 3 + b"|x 5 6\n" + empty.rstrip())
    with contextlib.closing(CTFDeserializer(path, X, strict=True).open(Opening(ahead=Ahead(ahead)))) as corpus:
        minibatch = read_corpus(corpus)
        assert minibatch["x"].values.tolist() == [[1, 2], [3, 4], [5, 6]]
        assert np.diff(minibatch.keys_of_sequences.astype(int)).tolist() == [2, 4]  # line numbers
        assert (corpus.report.errors, corpus.report.warnings) == ({}, {})


@pytest.mark.parametrize("empty", [*EMPTY_LINES, b"1 |# a\n"])
@pytest.mark.parametrize("block", [1, 8, 1 << 20])
def test_lines_without_content_count_for_the_length_and_cost_nothing(empty: bytes, block: int, tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_bytes(b"1 |x 1 2\n" + empty + b"1 |x 3 4\n" + empty * 2 + b"2 |x 5 6\n" + b"3 |# none\n\n4 |x 7 8\n")
    with sizes(block, block, 2), contextlib.closing(CTFDeserializer(path, X, strict=True).open()) as corpus:
        minibatch = read_corpus(corpus)
        assert minibatch.keys_of_sequences.tolist() == [1, 2, 4]
        assert corpus.table.lengths.tolist() == [5, 1, 1]
        assert [sequence.tolist() for sequence in minibatch["x"].as_sequences()] == [
            [[1, 2], [3, 4]],
            [[5, 6]],
            [[7, 8]],
        ]


def test_a_text_of_comments_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    for text in (b"|# a\n|# b\n", b"1 |# a\n\n|# b\n2 |#\n"):
        path.write_bytes(text)
        with pytest.raises(FormatError, match="holds nothing except blank lines and comments"):
            CTFDeserializer(path, X).open()


@pytest.mark.parametrize("alias", ["a b", "a\tb", "a|b", "|a", "#a", "a\n", "a\0", "\ud800"])
def test_names_that_no_text_can_have_are_refused(alias: str) -> None:
    with pytest.raises(ConfigError, match="no text has a stream named") as caught:
        CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(field=alias, shape=1)))
    assert caught.value.key == "x"


@pytest.mark.parametrize("index", [9_999_999, 65_536])
def test_inference_warns_of_an_index_that_makes_a_stream_wide(
    index: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("|w 5:1 942:1 |y 1\n" * 20 + f"|w {index}:1 |y 1\n" + "|w 7:1 |y 1\n")

    with sizes(block=64, piece=64, threads=2):
        streams = cntkio.infer_streams(path)

    assert streams["w"].dim == index + 1
    expected = (
        f"{path}, line 21, byte 360, stream 'w': the index {index} makes the stream {index + 1:,} wide, but "
        "41 of 42 indices are below 2,048; is this index wrong?"
    )
    assert [record.getMessage() for record in caplog.records] == [expected]
    assert main(["inspect", str(path)]) == 0
    assert f"cntkio: {expected}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "indices", ["5 99 9999 70000", "5 99 500 " * 2 + "70000 70001", "1 2 3 65535", "5 8191 131071"]
)
def test_inference_is_silent_about_indices_without_outliers(
    indices: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"|w {index}:1\n" for index in indices.split()))
    cntkio.infer_streams(path)
    assert not caplog.records

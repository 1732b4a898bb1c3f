"""The fast reader of the CNTK text format against the slow one, on every path."""

import contextlib
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_ctf
from ctf_files import CtfFile, canonical, ctf_files, valid_ctf_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cntkio import ConfigError, CorpusError, CTFDeserializer, FormatError, StreamDef, StreamDefs, _core
from cntkio.formats import ctf

ERRORS = (
    "bad-number bad-index index-out-of-range missing-colon too-many-values junk pipe-without-name name-at-end "
    "empty-value-at-end line-without-sample missing-stream too-many-samples too-few-samples "
    "high-byte-ends-value short-dense-sample"
).split()
NUM_ERRORS = _core.CTF_NUM_ERROR_KINDS


def deserializer(path: Path, file: CtfFile, **options: Any) -> CTFDeserializer:
    streams = {
        stream.name: StreamDef(
            field=stream.alias, shape=stream.dim, is_sparse=stream.is_sparse, defines_mb_size=stream.defines_mb_size
        )
        for stream in file.streams
    }
    given = {key: value for key, value in file.options.items() if key not in ("symbolic_ids", "double")}
    options.setdefault("dtype", np.float64 if file.options.get("double") else np.float32)
    return CTFDeserializer(str(path), StreamDefs(streams), **{**given, **options})


def in_order_of(file: CtfFile, columns: list[Any], corpus: ctf.CTFCorpus) -> dict[str, Any]:
    by_name = {info.name: column for info, column in zip(corpus.streams, columns, strict=True)}
    return {stream.name: by_name[stream.name] for stream in file.streams}


def samples_of(chunk: _core.Chunk, corpus: ctf.CTFCorpus, file: CtfFile) -> list[dict[str, Any]]:
    """The chunk's samples in the form of the slow reader."""
    count = chunk.num_sequences
    layout = [(info.stream_id, info.is_sparse, info.dtype == np.float64) for info in corpus.streams]
    gathered = _core.gather([chunk], np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32), layout)
    columns = []
    for info, (values, offsets, sparse) in zip(corpus.streams, gathered, strict=True):
        if sparse is None:
            rows: list[Any] = values.reshape(-1, info.dim).tolist()
        else:
            bounds = sparse[0].tolist()
            pairs = list(zip(sparse[1].tolist(), values.tolist(), strict=True))
            rows = [pairs[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
        columns.append([rows[a:b] for a, b in zip(offsets.tolist(), offsets[1:].tolist(), strict=False)])
    return [in_order_of(file, [column[number] for column in columns], corpus) for number in range(count)]


def problem(finding: Any, parsed: Any, corpus: ctf.CTFCorpus) -> slow_ctf.Problem:
    key = int(corpus.table.keys[parsed.first_sequence + finding.sequence])
    stream = None if finding.stream is None else corpus.streams[finding.stream].name
    return slow_ctf.Problem(ERRORS[finding.kind], parsed.first_byte + finding.at, key, stream)


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
    """Work in tiny blocks and pieces, so that small files take the paths of large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctf, "_BLOCK", block)
        patch.setattr(ctf, "_PIECE", piece)
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


def compare(file: CtfFile, folder: Path, budget: int) -> None:
    path = folder / "a.ctf"
    path.write_bytes(file.data)
    try:
        slow = slow_ctf.read(file.data, file.streams, **file.options)
    except slow_ctf.Refused as refused:
        with pytest.raises((FormatError, CorpusError)) as error:
            deserializer(path, file).open()
        if isinstance(error.value, FormatError) and refused.kind not in ("no-sequence-id", "no-sequence"):
            assert error.value.byte == refused.offset
        return
    corpus = deserializer(path, file, max_errors=-1).open()
    table = corpus.table
    assert [tuple(entry) for entry in slow.index] == list(
        zip(
            table.keys.tolist(), corpus._table.starts.tolist(), corpus._table.sizes.tolist(), table.lengths.tolist(),
            strict=True,
        )
    )
    assert table.chunk_starts.tolist() == [*slow.chunk_starts, len(slow.index)]
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
        found = [problem(finding, loaded.findings, corpus) for finding in loaded.findings.first]
        assert sorted(found) == sorted(first_ten(errors) + first_ten(warned))
        assert [one for one in found if one.kind not in ERRORS[NUM_ERRORS:]] == first_ten(errors)
        counts = Counter(one.kind for one in errors + warned)
        assert {ERRORS[kind]: count for kind, count in enumerate(loaded.findings.counts) if count} == counts
        corpus.settle(loaded)
    corpus.close()
    slow_samples = slow_ctf.Result(slow.index, [], slow.samples)
    assert canonical(slow_ctf.Result(slow.index, [], fast_samples))[2] == canonical(slow_samples)[2]

    # The budget: the error that finds it empty is the one that the slow reader counts there.
    errors = by_name(slow.errors, names)
    corpus = deserializer(path, file, max_errors=budget).open()

    def settle_all() -> None:
        for number in range(table.num_chunks):
            corpus.settle(corpus.load(number))

    if budget < len(errors):
        with pytest.raises(FormatError) as raised:
            settle_all()
        last_straw = errors[budget]
        assert raised.value.byte == last_straw.offset
        assert raised.value.sequence == last_straw.key
        assert raised.value.stream == last_straw.stream or last_straw.stream is None
        assert raised.value.line == file.data[: last_straw.offset].count(b"\n") + 1
        assert raised.value.column == last_straw.offset - (file.data.rfind(b"\n", 0, last_straw.offset) + 1) + 1
    else:
        settle_all()
    corpus.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ctf")


any_file = ctf_files().filter(lambda file: not file.options.get("symbolic_ids"))


@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(any_file, st.integers(0, 12), st.integers(1, 60), st.integers(1, 80), st.integers(1, 3))
def test_the_fast_reader_gives_what_the_slow_one_gives(
    folder: Path, file: CtfFile, budget: int, block: int, piece: int, threads: int
) -> None:
    with sizes(block, piece, threads):
        compare(file, folder, budget)


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(valid_ctf_files())
def test_valid_files_are_read_without_a_word(folder: Path, file: CtfFile) -> None:
    compare(file, folder, 0)

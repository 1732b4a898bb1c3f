"""The binary format: recorded, refused and damaged files; slow and fast readers and writers compared."""

import contextlib
import itertools
import json
import logging
import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    write_cbf,
)
from cntkio.formats.contract import Corpus
from cntkio.formats.pieces import read_corpus
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import cbf as slow_cbf
from slow.cbf import Content, Refused, Stream
from support.damage import damaged
from support.recorded import folder_of
from support.rounds import rounds

FOLDER = folder_of("cbf")
TINY, OLD_TINY = FOLDER / "data" / "tiny.cbf", FOLDER / "data" / "old_tiny.cbf"
SMALL_FILES = [TINY, OLD_TINY, *(FOLDER / "data" / name for name in ("unsorted.cbf", "gaps.cbf", "old_empty.cbf"))]


def table(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def read(path: Path, **options: Any) -> Content:
    """Read a file into the form of the slow reader, in one chunk."""
    corpus = CBFDeserializer(path, **options).open()
    try:
        whole = read_corpus(corpus)
        streams = [Stream(info.name, info.is_sparse, info.dtype == np.float64, info.dim) for info in corpus.streams]
        columns: dict[str, list[Any]] = {}
        for name, data in whole.items():
            width = data.values.dtype.itemsize
            content = data.values.tobytes()
            values = [content[at : at + width] for at in range(0, len(content), width)]
            if data.is_sparse:
                entries = list(zip(data.indices.tolist(), values, strict=True))
                starts = data.indptr.tolist()
                samples = [entries[begin:end] for begin, end in zip(starts, starts[1:], strict=False)]
            else:
                samples = [values[at : at + data.stream.dim] for at in range(0, len(values), data.stream.dim)]
            bounds = data.offsets.tolist()
            columns[name] = [samples[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
        found = [{name: column[at] for name, column in columns.items()} for at in range(corpus.table.num_sequences)]
        return Content(streams, [found], corpus.table.lengths.tolist())
    finally:
        corpus.close()


def in_one_chunk(content: Content) -> Content:
    return content._replace(chunks=[[sequence for chunk in content.chunks for sequence in chunk]])


def outcome(reader: Any, *arguments: Any) -> Content | str:
    try:
        return in_one_chunk(reader(*arguments))
    except (Refused, FormatError):
        return "refused"


# --------------------------------------------------------------------------------------------- recorded files


@pytest.mark.parametrize("entry", table("refuse.json") + table("refuse_old.json"), ids=lambda entry: entry["file"])
def test_a_damaged_file_is_read_or_refused_with_a_location(entry: dict[str, Any]) -> None:
    path = FOLDER / entry["file"]
    if entry["expect"] == "refuse":
        with pytest.raises(FormatError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}, byte {caught.value.byte}")
    elif entry["expect"] == "accept":
        assert read(path) == read(path.with_name("intact.cbf"))
    else:
        assert outcome(read, path) in ("refused", outcome(slow_cbf.read, path.read_bytes()))


@pytest.mark.parametrize("name", ["old_tiny", "old_many", "old_ctf2bin", "old_f64", "old_notseq"])
def test_the_documented_layout_agrees_with_the_reader_of_2017(name: str) -> None:
    decoded = json.loads((FOLDER / "data" / f"{name}.content.json").read_text(encoding="utf-8"))
    expected = [sequence for chunk in decoded["chunks"] for sequence in chunk["sequences"]]
    content = read(FOLDER / "data" / f"{name}.cbf")
    assert content.lengths == [sequence["num_samples"] for sequence in expected]


def test_a_binary_corpus_can_only_be_the_first_of_a_join() -> None:
    extra = CTFDeserializer(FOLDER / "data" / "extra.ctf", StreamDefs(extra=StreamDef(field="extra", shape=1)))
    with pytest.raises(ConfigError, match="must be the first deserializer"):
        MinibatchSource([extra, CBFDeserializer(FOLDER / "data" / "many.cbf")])


# ---------------------------------------------------------------------------------------------------- options


def test_samples_have_the_requested_shape_if_the_values_fit() -> None:
    streams = StreamDefs(image=StreamDef(field="x", shape=(2, 1)))
    with MinibatchSource(CBFDeserializer(TINY, streams), randomize=False) as source:
        assert source.next_minibatch(1)["image"].values.shape == (1, 2, 1)


@pytest.mark.parametrize(
    ("streams", "what"),
    [
        ({"y": StreamDef(field="nope", shape=1)}, "no stream 'nope' to be named 'y'; it has: 'x', 's'"),
        ({"y": StreamDef(field="X")}, "no stream 'X' .* did you mean 'x'?"),
        ({"nope": StreamDef()}, "no stream 'nope'"),
        ({"y": StreamDef(field="x", shape=3)}, "'y' has 2 values a sample, not the requested 3; expected shape=2"),
        ({"s": StreamDef(field="s", shape=11, is_sparse=True)}, "'s' has 10 values a sample, not the requested 11"),
    ],
)
def test_a_wrong_name_or_shape_is_an_error_unless_compatible(streams: Any, what: str, caplog: Any) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        CBFDeserializer(TINY, StreamDefs(streams)).open()
    assert caught.value.key in streams
    with pytest.raises(ConfigError, match=what):
        CBFDeserializer(TINY, StreamDefs(streams), compatible=True, strict=True).open()
    assert not caplog.text
    with caplog.at_level(logging.WARNING, "cntkio"):
        corpus = CBFDeserializer(TINY, StreamDefs(streams), compatible=True).open()
    assert re.search(what, caplog.text)
    assert sorted(info.shape for info in corpus.streams) == [(2,), (10,)]
    corpus.close()


@pytest.mark.parametrize(
    ("streams", "what"),
    [
        ({"y": StreamDef(field="x", shape=2, is_sparse=True)}, "'y' is dense, not sparse as requested"),
        ({"y": StreamDef(field="x", is_sparse=True)}, "'y' is dense, not sparse as requested"),
        ({"y": StreamDef(field="s", shape=10)}, "'y' is sparse, not dense as requested"),
        ({"x": StreamDef(field="a", shape=2)}, "no stream 'a' to be named 'x'; its own stream 'x' is read"),
    ],
)
def test_warns_of_defects_that_cntk_overlooks_and_refuses_them_if_strict(streams: Any, what: str, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "cntkio"):
        CBFDeserializer(TINY, StreamDefs(streams)).open().close()
    assert what in caplog.text
    with pytest.raises(ConfigError, match=what):
        CBFDeserializer(TINY, StreamDefs(streams), strict=True).open()


def test_the_name_of_a_sparse_stream_is_changed_without_a_warning(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "cntkio"):
        corpus = CBFDeserializer(TINY, StreamDefs(words=StreamDef(field="s"))).open()
    assert [info.name for info in corpus.streams if info.is_sparse] == ["words"]
    assert not caplog.text
    corpus.close()


def test_warns_of_unused_bytes_and_refuses_them_if_strict(caplog: Any) -> None:
    path = FOLDER / "refuse" / "extra-chunk-bytes.cbf"
    with caplog.at_level(logging.WARNING, "cntkio"):
        read(path)
    assert "the last 5 bytes of chunk 0 are not used" in caplog.text
    with pytest.raises(FormatError, match="the last 5 bytes"):
        read(path, strict=True)


def test_values_are_converted_or_refused_by_precision() -> None:
    as_it_is, path = read(TINY), TINY
    double = read(path, dtype=np.float64)
    assert [stream.is_double for stream in double.streams] == [True, True]
    assert [struct.unpack("<d", value)[0] for value in double.chunks[0][1]["x"][1]] == [5.0, 6.0]
    assert read(path, dtype=np.float32) == as_it_is
    deserializer = CBFDeserializer(path)
    deserializer["precision"] = "Double"
    with pytest.raises(ConfigError, match=r"is in float32, not in the requested float64"):
        deserializer.open()
    with pytest.raises(ConfigError, match="expected 'float' or 'double'"):
        deserializer["precision"] = "half"
    assert (deserializer["precision"], deserializer["TYPE"]) == ("double", "CNTKBinaryFormatDeserializer")


def test_truth_values_of_options_are_read_as_in_every_format(caplog: pytest.LogCaptureFixture) -> None:
    deserializer = CBFDeserializer("a.cbf")
    deserializer["keepDataInMemory"] = "T"
    assert deserializer.keep_data_in_memory is True
    with pytest.raises(ConfigError, match="a.cbf: option 'keepDataInMemory' is 'yes'; expected a truth value"):
        deserializer["keepDataInMemory"] = "yes"
    deserializer["maxErrors"] = 3
    assert "option 'maxErrors' has no effect: no error in a binary file is forgiven" in caplog.text
    with pytest.raises(KeyError, match="no option 'presicion'; did you mean 'precision'"):
        deserializer["presicion"]


def test_options_survive_pickling_and_their_repr_recreates_them() -> None:
    made = CBFDeserializer("a.cbf", StreamDefs(y=StreamDef(field="x", shape=2)), dtype=np.float64, strict=True)
    text = "CBFDeserializer('a.cbf', StreamDefs(y=StreamDef(field='x', shape=2)), dtype='float64', strict=True)"
    assert repr(made) == repr(eval(text)) == repr(pickle.loads(pickle.dumps(made))) == text


def test_kept_chunks_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.cbf"
    path.write_bytes(TINY.read_bytes())
    corpus = CBFDeserializer(path, keep_data_in_memory=True).open()
    first = corpus.load(0)
    path.write_bytes(b"something else")
    assert corpus.load(0) is first
    with pytest.raises(CorpusError, match="changed while in use"):
        corpus.load(1)
    corpus.close()


def in_chunks(path: Path) -> Path:
    write_cbf(path, {"x": np.arange(60_000.0).reshape(-1, 1, 10)}, chunk_size_in_bytes=8 << 10)
    return path


@pytest.mark.parametrize("randomize", [False, True])
def test_reading_a_changed_file_is_an_error(tmp_path: Path, randomize: bool) -> None:
    path = in_chunks(tmp_path / "a.cbf")
    with MinibatchSource(CBFDeserializer(path), randomize=randomize) as source:
        assert source.next_minibatch(1000)
        os.utime(path, ns=(0, 0))
        with pytest.raises(CorpusError, match=r"a\.cbf: changed while in use"):
            for _ in range(100):
                source.next_minibatch(1000)


# Writes numbers into random places of a file through a map, and takes them back, until its input ends.
FLIPPER = """
import mmap, random, struct, sys, threading
path, begin, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
threading.Thread(target=sys.stdin.read, daemon=True).start()
choose = random.Random(1)
with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as shown:
    print("begun", flush=True)
    while threading.active_count() > 1:
        at = choose.randrange(begin // 4, end // 4) * 4
        kept = shown[at : at + 4]
        for number in (-1, 0, 7, 2**30, 2**31 - 1):
            shown[at : at + 4] = struct.pack("<i", number)
        shown[at : at + 4] = kept
"""


@pytest.mark.parametrize("layout", ["2.x", "documented"])
def test_a_map_that_another_process_changes_gives_data_or_errors(
    tmp_path: Path, layout: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.cbf"
    rows = [scipy.sparse.csr_array(([1.0, 2.0], ([0, 0], [number % 7, 7])), shape=(1, 9)) for number in range(300)]
    write_cbf(path, {"x": np.ones((300, 1), np.float32), "y": rows}, layout=layout)
    with contextlib.closing(CBFDeserializer(path).open()) as corpus:
        header = corpus.index.layout
        begin, end = int(header.begins[0]), int(header.ends[0])
    words = [sys.executable, "-c", FLIPPER, str(path), str(begin), str(end)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flipper:
        assert flipper.stdout is not None and flipper.stdout.readline() == b"begun\n"
        for _ in range(100):
            with (
                contextlib.suppress(CorpusError, FormatError),
                MinibatchSource(CBFDeserializer(path), max_sweeps=1) as source,
            ):
                while source.next_minibatch(50):
                    pass
        assert flipper.stdin is not None
        flipper.stdin.close()
    assert capfd.readouterr() == ("", "")


def test_without_a_memory_map_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = in_chunks(tmp_path / "a.cbf")
    corpus = CBFDeserializer(path, memory_map=False)
    with MinibatchSource(corpus, randomize=False, read_ahead_in_bytes=0) as source:
        assert source.next_minibatch(1000)
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(CorpusError, match=r"a\.cbf: changed while in use"):
            for _ in range(100):
                source.next_minibatch(1000)


TRUNCATED = """
import os, sys, time
from types import SimpleNamespace
import numpy as np
from cntkio import CBFDeserializer, CorpusError, MinibatchSource, _core

corpus = CBFDeserializer(sys.argv[1]).open()
chunk = corpus.load(0).chunk
rows = np.arange(chunk.num_sequences, dtype=np.uint32)
first, zeros = np.zeros_like(rows), np.zeros(len(rows), np.int64)
streams = [(0, False, True)]
refs = SimpleNamespace(chunk_indices=first, indices_in_chunk=rows)
parts = SimpleNamespace(first_sample=zeros, num_samples=zeros + 1, lengths=first + 1)
whole = _core.Whole(streams, len(rows))
os.truncate(sys.argv[1], 100)
for attempt in (
    lambda: _core.pack([_core.PackRequest([chunk], first, rows, streams, [0, len(rows)])], 1),
    lambda: _core.spread([chunk], refs, parts, zeros, [(0, 10, True)], 1),
    lambda: whole.append(chunk, 1),
    chunk.in_full_width,
    lambda: corpus.load(1),
):
    try:
        attempt()
    except CorpusError as error:
        print(error)
"""


def test_a_file_truncated_between_reads_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = in_chunks(tmp_path / "a.cbf")
    ran = subprocess.run([sys.executable, "-c", TRUNCATED, str(path)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran
    lines = ran.stdout.splitlines()
    assert len(lines) == 5
    assert all("a.cbf: changed while in use" in line for line in lines)


@pytest.mark.parametrize("memory_map", [True, False])
def test_chunks_beyond_four_gigabytes_are_read(tmp_path: Path, memory_map: bool) -> None:
    content = in_chunks(tmp_path / "a.cbf").read_bytes()
    header_at, shift = struct.unpack("<q", content[-8:])[0], 2**32 + 1
    num_chunks = struct.unpack_from("<I", content, header_at + 8)[0]
    table_at = len(content) - 8 - 16 * num_chunks
    table = np.frombuffer(content[table_at:-8], [("offset", "<i8"), ("counts", "<u4", 2)]).copy()
    table["offset"] += shift
    far = tmp_path / "far.cbf"
    with far.open("wb") as file:  # unwritten parts of the file take no space on the disk
        file.write(content[:12])
        file.seek(12 + shift)
        file.write(content[12:table_at] + table.tobytes() + struct.pack("<q", header_at + shift))
    assert far.stat().st_size > 2**32
    for randomize in (False, True):
        read = []
        for path in (tmp_path / "a.cbf", far):
            with MinibatchSource(
                CBFDeserializer(path, memory_map=memory_map), randomize=randomize, max_sweeps=1
            ) as source:
                read.append([minibatch["x"].values.tolist() for minibatch in source.minibatches(700)])
        assert read[0] == read[1]
        assert sum(map(len, read[1])) == 6000


def test_a_memory_map_and_a_copy_deliver_the_same_data(tmp_path: Path) -> None:
    path = in_chunks(tmp_path / "a.cbf")
    sources = [MinibatchSource(CBFDeserializer(path, memory_map=shown), max_sweeps=1) for shown in (True, False)]
    read = [[minibatch["x"].values.tolist() for minibatch in source.minibatches(700)] for source in sources]
    assert read[0] == read[1]
    assert sum(len(values) for values in read[0]) == 6000


# --------------------------------------------------------------------------------------------- damaged files


@pytest.mark.parametrize("original", SMALL_FILES, ids=lambda path: path.name)
def test_damaged_input_is_read_as_by_the_slow_reader(original: Path, tmp_path: Path) -> None:
    content, path = original.read_bytes(), tmp_path / "damaged.cbf"
    for bad in damaged(content):
        path.write_bytes(bad)
        assert outcome(read, path) == outcome(slow_cbf.read, bad)


@pytest.mark.parametrize("memory_map", [True, False])
def test_a_part_of_a_damaged_chunk_is_refused_as_the_chunk_is(tmp_path: Path, memory_map: bool) -> None:
    path, refused = tmp_path / "a.cbf", 0
    rows = [scipy.sparse.csr_array(([1.0, 2.0], ([0, 0], [number, 7])), shape=(1, 9)) for number in range(3)]
    write_cbf(path, {"y": rows})
    content = path.read_bytes()
    with contextlib.closing(CBFDeserializer(path).open()) as corpus:
        begin, end = (int(places[0]) for places in (corpus.index.layout.begins, corpus.index.layout.ends))

    def refusal(corpus: Corpus, *part: Any) -> str | None:
        try:
            corpus.load(0, *part)
        except FormatError as error:
            return str(error)
        return None

    for at, number in itertools.product(range(begin + 4 * len(rows), end, 4), (-1, 1, 9)):  # after the list of lengths
        path.write_bytes(content[:at] + struct.pack("<i", number) + content[at + 4 :])
        with contextlib.closing(CBFDeserializer(path, memory_map=memory_map).open()) as corpus:
            parts = {refusal(corpus, np.array([sequence], np.uint32)) for sequence in range(len(rows))}
            whole = refusal(corpus)
        assert whole in parts if whole else parts == {None}
        refused += whole is not None
    assert refused > 20


def test_a_zero_in_the_length_list_is_a_located_error(tmp_path: Path) -> None:
    path = tmp_path / "a.cbf"
    sequences = [{"x": [[struct.pack("<f", value)]]} for value in (1, 2, 3)]
    path.write_bytes(slow_cbf.write(Content([Stream("x", False, False, 1)], [sequences], [2, 0, 1])))
    with pytest.raises(FormatError, match="byte 16, sequence 1: the length list says 0 samples"):
        CBFDeserializer(path).open()


MEMORY = """
import sys, tempfile, warnings
from pathlib import Path
sys.path.insert(0, sys.argv.pop())
from support.builders import peak_memory
from cntkio import CBFDeserializer, CntkIoError
import logging
logging.disable()
def read(path):
    try:
        corpus = CBFDeserializer(path).open()
        for chunk in range(corpus.table.num_chunks):
            corpus.load(chunk)
        corpus.close()
    except CntkIoError:
        pass
files = [Path(name) for name in sys.argv[1:]]
for path in files[:2]:
    read(path)
before = peak_memory()
for path in files:
    read(path)
print(peak_memory() - before)
"""


def test_sizes_in_a_damaged_header_allocate_no_memory() -> None:
    files = [TINY, OLD_TINY, *sorted((FOLDER / "refuse").iterdir()), *sorted((FOLDER / "refuse_old").iterdir())]
    command = [sys.executable, "-c", MEMORY, *map(str, files), str(Path(__file__).parents[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 << 20  # over 140 files


# ------------------------------------------------------------------------------------------------- round trips


@st.composite
def contents(draw: st.DrawFn, layout: str = "2.x") -> Content:
    """Streams, chunks and sequences that the layout can express."""
    streams = []
    for number in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["", "x", "ä", "name with blanks"])) + "abc"[number]
        streams.append(Stream(name, draw(st.booleans()), draw(st.booleans()), draw(st.integers(1, 5))))

    def value(stream: Stream) -> bytes:
        width = 8 if stream.is_double else 4
        return draw(st.binary(min_size=width, max_size=width))

    def samples(stream: Stream) -> list[Any]:
        if not stream.is_sparse:
            count = 1 if layout == "documented" else draw(st.integers(0, 3))
            return [[value(stream) for _ in range(stream.dim)] for _ in range(count)]
        sizes = draw(st.lists(st.integers(0, 3), min_size=layout == "documented", max_size=4))
        if layout == "documented" and len(sizes) > 1:
            sizes[-1] = sizes[-1] or 1  # empty samples at the end leave no trace in the file
        index = st.integers(0, stream.dim - 1)
        return [[(draw(index), value(stream)) for _ in range(size)] for size in sizes]

    sequences = [{stream.name: samples(stream) for stream in streams} for _ in range(draw(st.integers(1, 6)))]
    cuts = sorted({0, len(sequences), *draw(st.lists(st.integers(0, len(sequences)), max_size=2))})
    chunks = [sequences[begin:end] for begin, end in zip(cuts, cuts[1:], strict=False)]
    lengths = [max(1, *(len(found) for found in sequence.values())) for sequence in sequences]
    return Content(streams, chunks, lengths)


@settings(max_examples=rounds(60))
@given(st.data())
@pytest.mark.parametrize("layout", ["2.x", "documented"])
def test_the_fast_reader_reads_files_of_the_slow_writer(layout: str, data: st.DataObject) -> None:
    content = data.draw(contents(layout))
    path = Path(f"/tmp/cntkio-slow-{layout}.cbf")
    written = slow_cbf.write(content, layout)
    try:
        path.write_bytes(written)
        if sum(content.lengths) > 2 * len(written):
            return
        assert outcome(slow_cbf.read, written) == outcome(read, path) == in_one_chunk(content)
    finally:
        path.unlink()


@settings(max_examples=rounds(60))
@given(st.data(), st.integers(1, 400))
@pytest.mark.parametrize("layout", ["2.x", "documented"])
def test_both_readers_read_files_of_the_fast_writer(layout: str, data: st.DataObject, chunk_size: int) -> None:
    content = data.draw(contents(layout))
    source, target = Path(f"/tmp/cntkio-fast-{layout}-a.cbf"), Path(f"/tmp/cntkio-fast-{layout}-b.cbf")
    try:
        source.write_bytes(slow_cbf.write(content, layout))
        write_cbf(target, CBFDeserializer(source), chunk_size_in_bytes=chunk_size, layout=layout)
        assert outcome(slow_cbf.read, target.read_bytes()) == outcome(read, target) == in_one_chunk(content)
    finally:
        source.unlink()
        target.unlink()


def test_a_chunk_ends_with_the_sequence_that_fills_it(tmp_path: Path) -> None:
    path = tmp_path / "a.cbf"
    write_cbf(path, {"x": np.zeros((1000, 10), np.float32)}, chunk_size_in_bytes=4800)
    corpus = CBFDeserializer(path).open()
    # A sequence takes 4 bytes in the length list, 4 for its count and 40 of values: 100 sequences fill 4800 bytes.
    assert np.diff(corpus.table.chunk_starts).tolist() == [100] * 10
    corpus.close()


@pytest.mark.parametrize("layout", ["2.x", "documented"])
def test_an_interrupted_write_leaves_nothing(layout: Any, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        write_cbf(tmp_path / "a.cbf", {"x": np.zeros((10, 2))}, chunk_size_in_bytes=1, layout=layout, progress=stop)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "b.cbf").write_bytes(b"the old one")
    with pytest.raises(CorpusError, match="no sequence"):
        write_cbf(tmp_path / "b.cbf", {"x": np.zeros((0, 2))}, layout=layout)
    assert (tmp_path / "b.cbf").read_bytes() == b"the old one"
    assert len(list(tmp_path.iterdir())) == 1


def test_refuses_to_write_values_that_the_documented_layout_cannot_express(tmp_path: Path) -> None:
    path = tmp_path / "a.cbf"
    with pytest.raises(FormatError, match="sequence 1, stream 'x': 2 samples; the documented layout"):
        write_cbf(path, {"x": [np.zeros((1, 3)), np.zeros((2, 3))]}, layout="documented")
    csr = pytest.importorskip("scipy.sparse").csr_array
    late = csr((np.ones(1), np.array([5]), np.array([0, 0, 0, 1])), shape=(3, 2**30))
    with pytest.raises(FormatError, match=r"stream 's': row 2147483653 .* ends at 2147483647"):
        write_cbf(path, {"s": [late]}, layout="documented")
    assert list(tmp_path.iterdir()) == []

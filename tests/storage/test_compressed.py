"""Compressed texts: the same results as from the plain text, and located errors for damaged files."""

import gzip
import random
import re
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CntkIoError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    Remote,
    StreamDef,
    StreamDefs,
    _core,
)
from cntkio.arguments import COMMAND, CONFIGURATION, PYTHON, Wording, calling
from cntkio.cli.command import main
from cntkio.formats import htk, written_files
from cntkio.storage import block_cache, compressed
from cntkio.storage.open_input import open_input, text_sizes
from cntkio.storage.text_input import InputFile, Locator, windows_of
from support.packers import PACKERS, Packer, frames, member_of_blocks, members, one_frame, sized_frames, written_by_us
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2), s=StreamDef(field="s", shape=9, is_sparse=True))
OTHER = StreamDefs(y=StreamDef(field="y", shape=1))


def random_text(source: random.Random) -> bytes:
    with_ids = source.random() < 0.6
    lines = []
    for line in range(source.randrange(1, 80)):
        number = b"%d " % (line // source.randrange(1, 4)) if with_ids and source.random() < 0.9 else b""
        x = b"|x %d %d" % (source.randrange(10**9), source.randrange(9))
        s = b" |s" + b" %d:1" % source.randrange(9) * source.randrange(9)
        bad = source.random() < 0.1
        lines += [number, b"|x 1 a" if bad else x + s, b"|# comment" * source.randrange(3), b"\n"]
    return b"".join(lines)


def outcome(deserializers: list[Any], size: int, partition: tuple[int, int], **options: Any) -> Any:
    """Everything that a source delivers, its report and a state; or the error."""
    try:
        with MinibatchSource(deserializers, max_sweeps=2, **options) as source:
            read, states = [], []
            for minibatch in source.minibatches(size, partition[1], partition[0]):
                values = {
                    name: (data.values.tolist(), data.mask.tolist(), data.end_of_sweep)
                    for name, data in minibatch.items()
                }
                read.append((minibatch.keys_of_sequences.tolist(), values))
                state = source.state_dict()
                states.append((state["timeline"], state["data"]))
            return read, states, source.error_counts, source.warning_counts
    except CntkIoError as error:
        return type(error), str(error)


def small_parts(monkeypatch: pytest.MonkeyPatch, source: random.Random) -> None:
    monkeypatch.setattr(compressed, "SPACING", source.choice((1, 30, 300, 4 << 20)))
    monkeypatch.setattr(compressed, "FRAMES", source.choice((1, 100, 1 << 20)))
    monkeypatch.setattr("cntkio.formats.ctf.corpus.PIECE", source.choice((1, 100, 1 << 20)))
    monkeypatch.setenv("CNTKIO_NUM_THREADS", str(source.choice((1, 3))))


@pytest.mark.parametrize("seed", range(rounds(9)))
@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_text_equals_the_plain_text(
    packer: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(f"{packer} {seed}")
    path = tmp_path / "a.ctf"
    text = random_text(source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "b.ctf").write_bytes(b"".join(b"%d |y %d\n" % (key, key) for key in range(80)))
    joins = source.random() < 0.3
    options: dict[str, Any] = {"randomize": source.random() < 0.6, "randomization_seed": seed}
    if source.random() < 0.3:
        options["truncation_length"] = source.randrange(1, 4)
    settings: dict[str, Any] = {
        "max_errors": source.choice((0, 3, -1)), "chunk_size_in_bytes": source.choice((60, 500, 1 << 20)),
        "skip_sequence_ids": not joins and source.random() < 0.3,
    }  # fmt: skip
    size, partition = source.randrange(1, 30), source.choice(((0, 1), (1, 2)))

    def read(cache_index: bool) -> Any:
        deserializers = [CTFDeserializer(path, STREAMS, cache_index=cache_index, **settings)]
        if joins:
            deserializers.append(CTFDeserializer(tmp_path / "b.ctf", OTHER))
        return outcome(deserializers, size, partition, **options)

    path.write_bytes(text)
    expected = read(False)
    small_parts(monkeypatch, source)
    path.write_bytes(PACKERS[packer](text, source))
    assert read(False) == expected
    assert read(True) == expected
    assert read(True) == expected


@pytest.mark.parametrize("packer", PACKERS)
def test_every_part_of_a_compressed_text_is_read(packer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(packer)
    path = tmp_path / "a.ctf"
    for round_ in range(20):
        text = bytes(source.choice(b"0123 \n|x") for _ in range(source.randrange(1, 3000)))
        small_parts(monkeypatch, source)
        path.write_bytes(PACKERS[packer](text, source))
        file = open_input(str(path))
        assert (file.size, file.storage.only_in_order) == (len(text), None)
        for _ in range(20):
            begin, size = source.randrange(len(text) + 9), source.randrange(len(text) + 9)
            assert file.read(begin, size) == text[begin : begin + size], round_
            buffer = np.zeros(size, np.uint8)
            count = file.read_into(buffer, begin)
            assert buffer[:count].tobytes() == text[begin : begin + size]
        windows = [window.text.read(window.begin, 1 << 20) for window in windows_of(file, 0)]
        assert b"".join(windows) == text
        file.close()


@pytest.mark.parametrize("seed", range(rounds(30)))
def test_headers_of_frames_show_the_points_that_a_pass_finds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    text = source.randbytes(source.randrange(300_000)) + bytes(source.randrange(400_000))
    packed = sized_frames(text, source)
    spacing = source.choice((1, 1000, 100_000, 4 << 20))
    monkeypatch.setattr(compressed, "SPACING", spacing)
    path = tmp_path / "a.ctf.zst"

    def found(content: bytes) -> tuple[list[int], list[int], int] | None:
        pair = _core.zstd_points((np.frombuffer(content, np.uint8), 0), spacing)
        return None if pair is None else (pair[0].texts.tolist(), pair[0].places.tolist(), pair[1])

    def passed_over(content: bytes) -> tuple[list[int], list[int], int] | None:
        path.write_bytes(content)
        file = InputFile(str(path))
        try:
            points = compressed.pass_over(file, "zstd")
        except FormatError:
            return None
        finally:
            file.close()
        return points.texts.tolist()[:-1], points.places.tolist()[:-1], int(points.texts[-1])

    whole = passed_over(packed)
    assert whole is not None and found(packed) == whole
    # Damaged headers show nothing, or show the points; the reader finds damaged blocks.
    for _ in range(30):
        flipped = bytearray(packed)
        flipped[source.randrange(min(len(packed), 30))] ^= 1 << source.randrange(8)
        for content in (packed[: source.randrange(len(packed))], bytes(flipped)):
            expected = passed_over(content)
            assert expected is None or found(content) in (None, expected)


@pytest.fixture
def path_and_text(tmp_path: Path) -> tuple[Path, bytes]:
    text = b"".join(b"%d |x %d %d |s %d:1\n" % (key // 2, key, key * 7 % 1000, key % 9) for key in range(3000))
    return tmp_path / "a.ctf.gz", text


def test_a_large_frame_is_read_in_order_and_not_randomized(
    path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    path.write_bytes(text)
    plain = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=700)
    expected = outcome([plain], 100, (0, 1), randomize=False)
    source = random.Random(3)
    for cut in (0, len(text) // 3):
        path.write_bytes(one_frame(text[:cut], random.Random(1)) + one_frame(text[cut:], random.Random(2)))
        monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1500)
        assert outcome([plain], 100, (0, 1), randomize=False) == expected
        with pytest.raises(CorpusError, match=r"cannot be randomized: it has a frame with .*cntkio convert --compress"):
            MinibatchSource(plain)
        for piece in (compressed.PIECE, 400, 1500, 1):
            monkeypatch.setattr(compressed, "PIECE", piece)
            file = open_input(str(path))
            near = [source.randrange(9000, 13_000) for _ in range(40)]
            for begin in (9000, 100, 9500, 9900, 11500, 11000, 50_000, 0, *near, len(text) - 9):
                assert file.read(begin, 900) == text[begin : begin + 900]
            file.close()
        monkeypatch.undo()


@pytest.mark.parametrize("packer", [member_of_blocks, members])
def test_gzip_in_order_begins_at_members(
    packer: Packer, path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only from a member on can data be decompressed without the window of a point."""
    path, text = path_and_text
    monkeypatch.setattr(compressed, "SPACING", 2000)
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1500)
    path.write_bytes(packer(text, random.Random(1)))
    file = open_input(str(path))
    assert file.storage.only_in_order is not None
    for begin in (50_000, 100, 30_000, 34_000, len(text) - 9, 0):
        assert file.read(begin, 900) == text[begin : begin + 900]
    file.close()


def test_a_later_reader_of_the_chunk_before_does_not_begin_again(
    path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1600)
    monkeypatch.setattr(compressed, "PIECE", 400)
    file = open_input(str(path))
    begun: list[int] = []
    stream = _core.CompressedStream
    monkeypatch.setattr(_core, "CompressedStream", lambda *given, **more: begun.append(1) or stream(*given, **more))
    # Two threads load chunks at the same time, so that a chunk may be read before the chunk that precedes it.
    for begin in (0, 2000, 1000, 4100, 3050, 5100, 8000, 7000, 6400):
        assert file.read(begin, 1050) == text[begin : begin + 1050]
    assert len(begun) == 1
    file.close()


WAYS_OUT: dict[str, tuple[Wording, str, str]] = {
    "program": (PYTHON, "(randomize=False)", "(remote=cntkio.Remote(cache='FOLDER'))"),
    "configuration": (CONFIGURATION, "(randomize = false)", "(remote = [ cache = FOLDER ])"),
    "command": (COMMAND, "(without --randomize)", "(--cache FOLDER)"),
}


@pytest.mark.parametrize("caller", WAYS_OUT)
def test_ways_out_for_large_frames_are_in_the_words_of_callers(
    caller: str, path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1500)
    words, *ways = WAYS_OUT[caller]
    with calling(words=words), pytest.raises(CorpusError) as error:
        MinibatchSource(CTFDeserializer(path, STREAMS))
    for way in (*ways, f"{len(text):,} bytes", f"(cntkio convert --compress zstd {path} NEW.ctf.zst)"):
        assert way in str(error.value)


def randomized(path: Path, **options: Any) -> Any:
    return outcome([CTFDeserializer(path, STREAMS, chunk_size_in_bytes=700, **options)], 100, (0, 1))


@pytest.mark.parametrize("block", [1000, 4 << 20])
def test_a_local_cache_makes_a_large_frame_randomizable(
    block: int, path_and_text: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    path.write_bytes(text)
    expected = randomized(path)
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1500)
    monkeypatch.setattr(block_cache, "BLOCK", block)
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", 1)
    remote = Remote(cache=tmp_path / "cache")
    assert randomized(path, remote=remote, cache_index=True) == expected
    # Nothing is decompressed again.
    with monkeypatch.context() as patch:
        patch.setattr(compressed.InOrder, "read_into", None)
        assert randomized(path, remote=remote, cache_index=True) == expected
    # Blocks that were removed or damaged come from the frame again, and so does another text.
    blocks = sorted((tmp_path / "cache").glob("*/*-*"))
    assert len(blocks) == -(-len(text) // block)
    blocks[0].unlink()
    blocks[-1].write_bytes(b"damaged")
    assert randomized(path, remote=remote, cache_index=True) == expected
    path.write_bytes(one_frame(b"|x 1 1\n" * 1000, random.Random(1)))
    assert randomized(path, remote=remote) != expected


@pytest.mark.parametrize("error", [OSError("the disk failed"), KeyboardInterrupt()])
def test_a_read_of_a_large_frame_can_be_repeated_after_an_error(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = random.Random(1).randbytes(9 << 20)  # several reads of the file, since it cannot become smaller
    path = tmp_path / "a.ctf.zst"
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1 << 20)
    file = open_input(str(path))
    assert file.storage.only_in_order is not None and file.read(0, 100) == text[:100]
    with monkeypatch.context() as patch:
        source, calls = InputFile.source, iter(range(9))

        def source_or_error(self: InputFile, begin: int, end: int) -> Any:
            if next(calls) == 1:
                raise error
            return source(self, begin, end)

        patch.setattr(InputFile, "source", source_or_error)
        with pytest.raises(type(error)):
            file.read(0, len(text))
    assert file.read(0, 6 << 20) == text[: 6 << 20]
    assert file.read(6 << 20, 3 << 20) == text[6 << 20 :]
    file.close()


def test_a_cache_too_small_for_a_large_frame_names_the_least_limit(
    path_and_text: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1500)
    least = block_cache.num_bytes_in_cache(len(text))
    remote = Remote(cache=tmp_path / "cache", cache_limit=least - 1)
    with pytest.raises(
        CorpusError, match=f"a cache_limit of {least - 1:,} bytes is too low for the text .it needs {least:,}."
    ):
        MinibatchSource(CTFDeserializer(path, STREAMS, remote=remote))
    remote = Remote(cache=tmp_path / "cache", cache_limit=max(least, 5 << 20))
    MinibatchSource(CTFDeserializer(path, STREAMS, remote=remote)).close()


def test_frames_that_convert_writes_from_a_large_frame_can_be_randomized(
    path_and_text: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    path = path.with_name("a.ctf.zst")
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", len(text) - 1)
    parts = tmp_path / "NEW.ctf.zst"
    monkeypatch.setattr(written_files, "FRAME", len(text) // 3)
    monkeypatch.setattr(compressed, "FRAMES", 1)
    assert main(["convert", "--quiet", "--compress", "zstd", str(path), str(parts)]) == 0
    path.write_bytes(text)
    keys = [[keys for keys, _ in randomized(path_and_text)[0]] for path_and_text in (parts, path)]
    assert keys[0] == keys[1]


def test_the_ways_out_for_a_large_frame_work_as_they_are_written(
    path_and_text: tuple[Path, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, text = path_and_text
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 1500)
    monkeypatch.setattr(block_cache, "WORTH_A_BLOCK", 1)
    command = ["bench", "--quiet", str(path)]
    assert main(command) == 0
    assert main([*command, "--randomize"]) == 1
    assert "--cache FOLDER" in capsys.readouterr().err
    assert main([*command, "--randomize", "--cache", str(tmp_path / "command")]) == 0
    assert list((tmp_path / "command").glob("*/*"))
    inputs = "x = [ dim = 2; format = dense ]; s = [ dim = 9; format = sparse ]"
    reader = f"readerType = CNTKTextFormatReader; file = {path}; input = [ {inputs} ]"
    configuration = path.with_name("a.cntk")
    for more in ("; randomize = false", f"; remote = [ cache = {tmp_path / 'configuration'} ]"):
        configuration.write_text(f"reader = [ {reader}{more} ]")
        MinibatchSource.from_config(configuration, section="reader").close()
    assert list((tmp_path / "configuration").glob("*/*"))
    configuration.write_text(f"reader = [ {reader} ]")
    with pytest.raises(CorpusError, match=r"randomize = false\); .* \(remote = .*FOLDER"):
        MinibatchSource.from_config(configuration, section="reader")


LARGE = 192 << 20


def test_a_search_of_a_large_text_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf.zst"
    with path.open("wb") as file, written_files.compressed(file, "zstd") as sink:
        for _ in range(LARGE >> 20):
            sink.write(memoryview(b"|x 1 1\n".ljust(1 << 20, b"\n")))
    text = open_input(str(path))
    assert text.size == LARGE
    tracemalloc.start()
    try:
        lines = Locator(text).lines_of(np.array([0, LARGE - 1, LARGE // 2, 7]))
        assert lines.tolist() == [1, LARGE - 6 * (LARGE >> 20), (LARGE - 6 * (LARGE >> 20)) // 2 + 1, 2]
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


def test_the_size_of_a_compressed_text_is_unknown_before_it_is_opened(path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    plain, missing = path.with_name("b.ctf"), path.with_name("c.ctf")
    plain.write_bytes(text)
    path.write_bytes(gzip.compress(text))
    assert text_sizes([str(path), str(plain), str(missing)]) == [0, len(text), 0]


def test_several_threads_read_a_large_frame(path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = path_and_text
    path.write_bytes(one_frame(text, random.Random(1)))
    monkeypatch.setattr(compressed, "LARGEST_SEGMENT", 5000)
    file = open_input(str(path))
    wrong: list[int] = []

    def read(first: int) -> None:
        wrong.extend(at for at in range(first, len(text), 4000) if file.read(at, 2000) != text[at : at + 2000])

    threads = [threading.Thread(target=read, args=(first,)) for first in (0, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


PACKED = {"gzip": member_of_blocks, "zstd": frames, "seekable zstd": written_by_us}


@pytest.mark.parametrize("kind", PACKED)
def test_truncated_files_are_errors(kind: str, path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    packed = PACKED[kind](text, random.Random(4))
    for size in (len(packed) // 3, len(packed) // 2, len(packed) - 30):
        path.write_bytes(packed[:size])
        with pytest.raises(FormatError, match=r"a\.ctf\.gz, byte \d+: the (gzip|zstd) data are damaged near byte"):
            CTFDeserializer(path, STREAMS).open()


@pytest.mark.parametrize("kind", PACKED)
def test_flipped_bits_are_errors_or_change_nothing(kind: str, path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    source = random.Random(5)
    packed = PACKED[kind](text, source)
    path.write_bytes(packed)
    expected = cntkio.read_ctf(path, STREAMS)["x"].values.tolist()
    num_errors = 0
    for _ in range(60):
        damaged = bytearray(packed)
        damaged[source.randrange(len(packed))] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        try:
            # Without a checksum, a frame may contain another text.
            found = cntkio.read_ctf(path, STREAMS)["x"].values.tolist()
            assert found == expected or kind == "zstd"
        except CntkIoError as error:
            num_errors += 1
            assert str(path) in str(error)
    assert num_errors > 20


def test_a_wrong_check_sum_is_an_error(path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    packed = bytearray(gzip.compress(text))
    packed[-8] ^= 1
    path.write_bytes(packed)
    with pytest.raises(FormatError, match="incorrect data check"):
        CTFDeserializer(path, STREAMS).open()


def test_bytes_after_the_data_are_an_error(path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    for packed in (gzip.compress(text), one_frame(text, random.Random(1))):
        path.write_bytes(packed + b"more")
        with pytest.raises(FormatError, match="only whole members or frames may follow each other"):
            CTFDeserializer(path, STREAMS).open()


def test_a_file_that_is_replaced_in_mid_sweep_is_an_error(path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    for pack in (gzip.compress, lambda text: written_by_us(text, random.Random(1))):
        path.write_bytes(pack(text))
        file = open_input(str(path))
        path.write_bytes(pack(text[::-1])[:-1000])
        with pytest.raises(CorpusError, match="changed while in use"):
            file.read(20_000, 5000)


def test_empty_data_are_an_empty_file(path_and_text: tuple[Path, bytes]) -> None:
    path, _ = path_and_text
    for packed in (gzip.compress(b"") * 3, one_frame(b"", random.Random(1)), written_by_us(b"", random.Random(1))):
        path.write_bytes(packed)
        with pytest.raises(FormatError, match="the file is empty"):
            CTFDeserializer(path, STREAMS).open()


def test_a_seek_table_of_other_data_is_ignored(path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    packed = written_by_us(text, random.Random(1))
    path.write_bytes(one_frame(b"7 |x 7 7 |s 1:1\n", random.Random(1)) + packed)
    assert cntkio.read_ctf(path, STREAMS)["x"].values.tolist()[0] == [7, 7]


def test_a_table_with_wrong_sizes_is_an_error(path_and_text: tuple[Path, bytes]) -> None:
    path, text = path_and_text
    packed = bytearray(written_by_us(text, random.Random(1)))
    for change, what in ((1, "hold less text than their table says"), (-1, "hold more text than their table says")):
        other = bytearray(packed)
        other[-13] += change
        path.write_bytes(other)
        with pytest.raises(FormatError, match=what):
            CTFDeserializer(path, STREAMS).open()


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_caches_of_access_points_are_made_again(
    damage: str, path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "SPACING", 1000)
    path, text = path_and_text
    path.write_bytes(member_of_blocks(text, random.Random(1)))

    def values() -> Any:
        with MinibatchSource(CTFDeserializer(path, STREAMS, cache_index=True), max_sweeps=1) as source:
            return [minibatch["x"].values.tolist() for minibatch in source.minibatches(100)]

    expected = values()
    caches = list(path.parent.glob("*.index"))
    assert len(caches) == 2
    for cache in caches:
        content = bytearray(cache.read_bytes())
        if damage == "flip":
            content[len(content) // 2] ^= 1
        cache.write_bytes(content if damage == "flip" else content[: len(content) // 2])
        assert values() == expected


def test_a_file_that_is_opened_again_is_passed_over_once(
    path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    passes: list[str] = []
    pass_over = compressed.pass_over
    monkeypatch.setattr(compressed, "pass_over", lambda *given: passes.append(given[0].path) or pass_over(*given))
    path.write_bytes(gzip.compress(text))
    for _ in range(2):
        assert open_input(str(path)).read(0, len(text)) == text
    assert len(passes) == 1
    # Another file, even of the same size, and other access points need another pass.
    other = text.replace(b"|x 1", b"|x 2", 1)
    path.write_bytes(gzip.compress(other))
    assert open_input(str(path)).read(0, len(text)) == other
    assert len(passes) == 2
    monkeypatch.setattr(compressed, "SPACING", 1000)
    assert open_input(str(path)).read(0, len(text)) == other
    assert len(passes) == 3
    copy = path.with_name("copy.ctf.gz")
    copy.write_bytes(path.read_bytes())
    assert open_input(str(copy)).read(0, len(text)) == other
    assert len(passes) == 4


def test_the_cache_spares_the_pass_over_the_file(
    path_and_text: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = path_and_text
    path.write_bytes(gzip.compress(text))
    deserializer = CTFDeserializer(path, STREAMS, cache_index=True)
    deserializer.open().close()
    monkeypatch.setattr(compressed, "pass_over", None)  # would fail
    deserializer.open().close()


PACKERS_OF_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": lambda content: one_frame(content, random.Random(1)),
}


@pytest.mark.parametrize("kind", PACKERS_OF_BYTES)
@pytest.mark.parametrize("name", ["u1.mfc", "a.scp", "a.mlf", "states.txt", "a.cbf"])
def test_compressed_files_of_other_formats_say_what_to_do(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    htk.write_features("u1.mfc", np.zeros((3, 2)))
    Path("a.scp").write_text("u1=u1.mfc[0,2]\n")
    Path("a.mlf").write_text('#!MLF!#\n"u1.lab"\n0 100000 a\n100000 300000 b\n.\n')
    Path("states.txt").write_text("a\nb\n")
    cntkio.write_cbf("a.cbf", {"x": np.zeros((3, 2), np.float32)})
    features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp="a.scp", shape=2)))
    labels = HTKMLFDeserializer("states.txt", StreamDefs(l=StreamDef(mlf="a.mlf", shape=2)))
    corpora = [CBFDeserializer("a.cbf")] if name == "a.cbf" else [features, labels]

    def read() -> int:
        with MinibatchSource(corpora, max_sweeps=1) as source:
            return sum(next(iter(minibatch.values())).num_samples for minibatch in source.minibatches(100))

    assert read() == 3
    Path(name).write_bytes(PACKERS_OF_BYTES[kind](Path(name).read_bytes()))
    unpack = f"this is a file compressed with {kind}: unpack it ({kind} -dk {name})"
    with pytest.raises(FormatError, match=re.escape(unpack)):
        read()

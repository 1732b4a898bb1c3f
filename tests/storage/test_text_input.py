"""Texts that the compiled core cannot read by itself: the same results as from a local file, in bounded memory."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CntkIoError, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs, infer_streams
from cntkio.formats.ctf import corpus, infer
from cntkio.storage.text_input import CoreText, InputFile, Storage, TextInMemory, windows_of_lines

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=9, is_sparse=True))


class Elsewhere:
    """A text that is not a local file for its readers. It records the largest number of bytes requested at once."""

    reach = 64

    def __init__(self, path: str) -> None:
        self.path = "store://a.ctf"
        self._file = InputFile(path)
        stored = self._file.storage
        self.storage = Storage(
            self.path,
            require_unchanged=stored.require_unchanged,
            facts=lambda verify: {"size": self.size, "e_tag": stored.facts(False)["content"]},
        )
        self.size = self._file.size
        self.close = self._file.close
        self.read, self.read_into = self._file.read, self._file.read_into

    def source(self, begin: int, end: int) -> CoreText:
        buffer = np.empty(end - begin, np.uint8)
        assert self._file.read_into(buffer, begin) == end - begin
        return buffer, begin


def random_text(random: random.Random) -> bytes:
    with_ids = random.random() < 0.6
    lines = [random.choice((b"", b"\xef\xbb\xbf", b"\n \n"))]
    for line in range(random.randrange(1, 60)):
        number = b"%d " % (line // random.randrange(1, 4)) if with_ids and random.random() < 0.9 else b""
        x = b"|x %d %d" % (random.randrange(10**9), random.randrange(9))
        y = b" |y" + b" %d:1" % random.randrange(9) * random.randrange(9)
        lines += [number, random.choice((x + y, x, y, b"|# " + b"c" * random.randrange(99), b"", b"|x 1 a")), b"\n"]
    text = b"".join(lines)
    return text[: random.randrange(len(text))] if random.random() < 0.3 else text


def outcome(path: Path, **options: Any) -> Any:
    """Everything that a corpus delivers, its report and its checkpoint; or the error."""
    try:
        deserializer = CTFDeserializer(path, STREAMS, chunk_size_in_bytes=150, **options)
        with MinibatchSource(deserializer, max_sweeps=1) as source:
            read = [source.next_minibatch(5)]
            state = {name: source.state_dict()[name] for name in ("timeline", "data")}
            read += source.minibatches(7)
            counts = source.error_counts, source.warning_counts
    except (CntkIoError, OSError) as error:
        return type(error), str(error).replace("store://a.ctf", str(path))
    shown = [
        (minibatch.keys_of_sequences.tolist(), [data.values.tolist() for data in minibatch.values()])
        for minibatch in read
        if minibatch
    ]
    return shown, counts, state


def streams_of(path: Path) -> Any:
    try:
        return {name: (stream.dim, stream.is_sparse) for name, stream in infer_streams(path).items()}
    except CntkIoError as error:
        return type(error), str(error).replace("store://a.ctf", str(path))


@pytest.mark.parametrize("seed", range(60))
def test_a_text_elsewhere_equals_a_local_text(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_of_test = random.Random(seed)
    path = tmp_path / "a.ctf"
    path.write_bytes(random_text(random_of_test))
    options = {
        "max_errors": random_of_test.choice((0, 3, -1)),
        "skip_sequence_ids": random_of_test.random() < 0.3,
        "subset": random_of_test.random() < 0.5,
        "strict": random_of_test.random() < 0.2,
    }
    expected, expected_streams = outcome(path, **options), streams_of(path)
    monkeypatch.setattr("cntkio.storage.text_input.BLOCK", random_of_test.choice((7, 50, 1 << 20)))
    monkeypatch.setattr(Elsewhere, "reach", random_of_test.choice((5, 64, 1 << 20)))
    for module in (corpus, infer):
        monkeypatch.setattr(module, "open_input", lambda path, _=None, **options: Elsewhere(path))
    assert outcome(path, **options) == expected
    assert streams_of(path) == expected_streams
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert outcome(path, cache_index=True, **options) == expected
    assert outcome(path, cache_index=True, **options) == expected
    assert [entry.name for entry in tmp_path.glob("*.index")] == []


def test_windows_contain_each_line_once_and_whole(tmp_path: Path) -> None:
    lines = [b"x" * (size * 7 % 23) + b"\n" for size in range(60)]
    for content in (b"".join(lines), b"".join(lines)[:-1], b"\n", b"abc", b"\n" * 200):
        path = tmp_path / "a.txt"
        path.write_bytes(content)
        for size in (1, 10, 64, 1 << 20):
            windows = list(windows_of_lines(InputFile(str(path)), 0, size))
            assert b"".join(window.text.read(window.begin, 1 << 20) for window in windows) == content
            assert [window.begin for window in windows[1:]] == [window.end for window in windows[:-1]]
            assert all(window.text.read(window.end - 1, 1) == b"\n" for window in windows[:-1])


def test_a_text_that_ends_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"12\n" * 100)
    file = InputFile(str(path))
    path.write_bytes(b"12\n" * 50)
    with pytest.raises(EOFError, match="ends before byte 192; expected 300 bytes"):
        list(windows_of_lines(file, 0, 64))


def test_text_in_memory_is_read_by_offsets_in_the_whole_text() -> None:
    text = TextInMemory("a.ctf", np.frombuffer(b"3456789", np.uint8), 3)
    buffer = np.zeros(4, np.uint8)
    assert (text.size, text.read(4, 2), text.read(8, 9), text.read(10, 1)) == (10, b"45", b"89", b"")
    assert (text.read_into(buffer, 5), buffer.tobytes()) == (4, b"5678")
    part, begin = text.source(5, 7)
    assert (bytes(part), begin) == (b"56", 5)  # type: ignore[arg-type]

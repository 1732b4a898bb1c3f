"""Passes over whole files report their progress to a watcher."""

import contextlib
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import CTFDeserializer, StreamDef, StreamDefs, infer_streams, read_vocabularies
from cntkio.arguments import Show, calling
from cntkio.formats.contract import Opening
from cntkio.formats.ctf import infer
from cntkio.storage.progress import announced, announced_together, passed

TEXT = "".join(f"{line // 3} |x {line % 10}:1 |# word{line % 10}\n" for line in range(600))
STREAMS = StreamDefs(x=StreamDef(field="x", shape=10, is_sparse=True))


class Seen:
    """A watcher that notes the reports."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[int, int]]] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[Show]:
        told = self.told.setdefault(name, [])
        yield lambda done, total: told.append((done, total))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cntkio.formats.ctf.index.AREA", 997)
    for name in ("SHARE", "SHARE_WITH_IDS"):
        monkeypatch.setattr(f"cntkio.formats.ctf.index.{name}", 31)
    monkeypatch.setattr("cntkio.storage.text_input.BLOCK", 997)
    monkeypatch.setattr(infer, "BLOCK_OF_WORDS", 997)


def opened(path: Any, **options: Any) -> dict[str, Any]:
    with contextlib.closing(CTFDeserializer(path, STREAMS, **options).open()) as corpus:
        return {"keys": corpus.table.keys[:].tolist(), "lengths": corpus.table.lengths.tolist()}


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("indexing", lambda: opened("a.ctf")),
        ("finding streams", lambda: infer_streams("a.ctf")),
        ("finding words", lambda: read_vocabularies("a.ctf")),
    ],
)
def test_a_pass_reports_ascending_numbers_up_to_all_bytes(name: str, look: Callable[[], Any]) -> None:
    Path("a.ctf").write_text(TEXT)
    expected, seen = look(), Seen()
    with calling(watcher=seen):
        assert look() == expected
    done = [number for number, _ in seen.told.pop(name)]
    assert done == sorted(set(done)) and len(done) > 10
    assert done[0] == 0 and done[-1] == len(TEXT) and not seen.told


def test_words_as_ids_are_indexed_in_one_reported_pass() -> None:
    Path("a.ctf").write_text(TEXT)
    seen = Seen()
    with (
        calling(watcher=seen),
        contextlib.closing(CTFDeserializer("a.ctf", STREAMS).open(Opening(text_keys=True))) as corpus,
    ):
        assert corpus.table.num_sequences == 200
    assert list(seen.told) == ["indexing"]
    assert seen.told["indexing"][-1] == (len(TEXT), len(TEXT))


def test_several_files_are_one_pass_even_with_index_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cntkio.formats.ctf.corpus.LEAST_CACHED", 1)
    for name in "abc":
        Path(f"{name}.ctf").write_text(TEXT)
    for _ in range(2):
        seen = Seen()
        with calling(watcher=seen):
            opened("*.ctf", cache_index=True, keys="per_file")
            infer_streams("*.ctf")
        assert seen.told.keys() == {"indexing", "finding streams"}
        for told in seen.told.values():
            assert {total for _, total in told} == {3 * len(TEXT)} and told[-1][0] == 3 * len(TEXT)


def test_a_compressed_text_is_decompressed_and_then_indexed() -> None:
    packed = gzip.compress(TEXT.encode())
    Path("a.ctf.gz").write_bytes(packed)
    seen = Seen()
    with calling(watcher=seen):
        opened("a.ctf.gz")
    assert seen.told["decompressing"][-1] == (len(packed), len(packed))
    assert seen.told["indexing"][-1] == (len(TEXT), len(TEXT))


def test_nothing_is_reported_outside_the_block() -> None:
    seen = Seen()
    with (
        calling(watcher=seen),
        calling(watcher=None),
        announced("a", 5) as add,
        announced_together("b", [0, 2]) as same,
    ):
        assert add is same is not None
        add(2)
        passed(3)
    with announced("c", 5) as add, announced_together("d", [1]) as same:
        assert add is same is None
        passed(3)
    assert seen.told == {"a": [(0, 5), (2, 5), (5, 5)]}


def test_the_index_is_the_same_in_windows_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    lines = [f"{sequence} |x {sequence % 10}:1\n" for sequence in range(300) for _ in range(generator.integers(1, 5))]
    Path("a.ctf").write_text("".join(lines))
    expected = opened("a.ctf")
    for size in (1, 2, 13, 100, 5000):
        monkeypatch.setattr("cntkio.formats.ctf.index.AREA", size)
        for name in ("SHARE", "SHARE_WITH_IDS"):
            monkeypatch.setattr(f"cntkio.formats.ctf.index.{name}", -(-size // 9))
        with calling(watcher=Seen()):
            assert opened("a.ctf") == expected

"""The scripts under `examples/` write the corpora there, and the demonstration prints the expected results."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cntkio
import numpy as np
import pytest
from support import ROOT

EXAMPLES = ROOT / "examples"
LARGEST_FOLDER = 3_000_000


def script(name: str) -> ModuleType:
    """Import a script of the examples, which are not a package."""
    spec = importlib.util.spec_from_file_location(f"examples_{name.replace('/', '_')}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Data classes look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["train", "test"])
def test_the_script_writes_the_digits_of_the_repository(name: str) -> None:
    path = EXAMPLES / "digits" / f"{name}.ctf"
    digits = cntkio.read_ctf(path)
    lines = script("digits/convert").ctf_lines(digits["pixels"].values, digits["label"].values.argmax(axis=1))
    assert "".join(lines) == path.read_text(encoding="ascii")


def test_the_script_writes_the_flowers_of_the_repository() -> None:
    path = EXAMPLES / "iris" / "iris.ctf"
    flowers = cntkio.read_ctf(path)
    lines = script("iris/convert").ctf_lines(flowers["lengths"].values, flowers["species"].values.argmax(axis=1))
    assert "".join(lines) == path.read_text(encoding="ascii")


def test_the_script_writes_the_book_of_the_repository(tmp_path: Path) -> None:
    for name in ("alice29.txt", "convert.py"):
        (tmp_path / name).write_bytes((EXAMPLES / "alice" / name).read_bytes())
    subprocess.run([sys.executable, tmp_path / "convert.py"], check=True, capture_output=True)
    for name in ("train.ctf", "test.ctf", "words.txt"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / "alice" / name).read_bytes(), name


@pytest.mark.parametrize(("name", "first_chapter", "last_chapter"), [("train", 1, 10), ("test", 11, 12)])
def test_the_book_is_read_as_its_script_cut_it(name: str, first_chapter: int, last_chapter: int) -> None:
    convert = script("alice/convert")
    text = (EXAMPLES / "alice" / "alice29.txt").read_text(encoding="ascii")
    words = (EXAMPLES / "alice" / "words.txt").read_text(encoding="ascii").splitlines()
    places = {word: place for place, word in enumerate(words)}
    paragraphs = [part for part in convert.paragraphs(text) if first_chapter <= part.chapter <= last_chapter]
    tokens = [token for paragraph in paragraphs for token in paragraph.tokens]

    book = cntkio.read_ctf(EXAMPLES / "alice" / f"{name}.ctf")

    assert book.keys_of_sequences.tolist() == [paragraph.number for paragraph in paragraphs]
    assert book["ch"].values.ravel().tolist() == [paragraph.chapter for paragraph in paragraphs]
    assert np.diff(book["w"].offsets).tolist() == [len(paragraph.tokens) for paragraph in paragraphs]
    assert book["w"].indices.tolist() == [places.get(token.word.lower(), 0) for token in tokens]
    assert book["c"].indices.tolist() == [convert.CASINGS.index(token.casing) for token in tokens]
    assert book["m"].indices.tolist() == [convert.MARKS.index(token.mark) for token in tokens]
    for stream in ("w", "c", "m"):
        assert (book[stream].values == 1).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`Down, I said--", [("Down", "first", ","), ("I", "first", "none"), ("said", "small", "--")]),
        (
            "`DOWN!' the sheep-\nbells",
            [("DOWN", "all", "!"), ("the", "small", "none"), ("sheep-bells", "small", "none")],
        ),
        ("don't; `?'", [("don't", "small", ";")]),
        ("this--\nthat", [("this", "small", "--"), ("that", "small", "none")]),
    ],
)
def test_words_of_a_paragraph_have_their_casing_and_mark(text: str, expected: list[tuple[str, str, str]]) -> None:
    convert = script("alice/convert")
    book = f"\n CHAPTER I\n\n Title\n\n{text}\n\n   *  *  *\n\n THE END\n"
    (paragraph,) = convert.paragraphs(book)
    assert [(token.word, token.casing, token.mark) for token in paragraph.tokens] == expected


def test_the_demonstration_learns_the_digits_and_prints_its_accuracy() -> None:
    finished = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    accuracy = re.search(r"^test accuracy +(0\.\d+) \(\d+ of 449 images\)$", finished.stdout, re.MULTILINE)
    assert accuracy is not None and float(accuracy[1]) > 0.93
    assert re.search(r"^throughput +[\d,]+ samples/s", finished.stdout, re.MULTILINE)
    assert finished.stderr == ""


def test_the_page_of_every_corpus_names_source_and_licence() -> None:
    folders = {path.parent for path in EXAMPLES.glob("*/*.ctf")}
    assert {folder.name for folder in folders} == {"alice", "digits", "iris"}
    for folder in folders:
        words = (folder / "README.md").read_text(encoding="utf-8")
        assert "**Source.**" in words and "**Licence.**" in words and "convert.py" in words


def test_the_examples_stay_small() -> None:
    assert sum(path.stat().st_size for path in EXAMPLES.rglob("*") if path.is_file()) < LARGEST_FOLDER

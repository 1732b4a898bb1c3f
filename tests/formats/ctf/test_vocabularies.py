"""Vocabularies from comments: words after one-hot samples, and contradictions."""

import json
from pathlib import Path

import pytest
from cntkio import read_ctf, read_vocabularies
from cntkio.cli import main
from cntkio.formats.ctf import infer
from cntkio.streams import StreamDef, StreamDefs

pytestmark = pytest.mark.usefixtures("current_folder")


TEXT = (
    "0\t|S0 178:1 |# BOS\t|S1 14:1 |# flight a\t|x 1 2 |# not a word\n"
    "0\t|S0 2:1 |# i\t\t|S1 14:1.0 |# flight a\r\n"
    "1\t|S0 178:1 |# EOS |S0 178:1 |#BOS\n"
    "1\t|S0 3:2 |# no |S0 3:1 4:1 |# no\n"
    "1\t|S0 5:1 |# last"
)


@pytest.mark.parametrize("block", [16, 64, 1 << 20])
def test_words_are_the_comments_after_one_hot_samples(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer, "BLOCK_OF_WORDS", block)
    Path("a.ctf").write_text(TEXT, newline="")
    found = read_vocabularies("a.ctf")
    assert found.keys() == {"S0", "S1"}
    assert found["S0"].words == {2: "i", 5: "last", 178: "BOS"}
    assert (found["S0"].num_samples, found["S0"].num_contradictions) == (5, 1)
    assert found["S0"].others == {178: {"EOS": 1}}
    assert found["S1"] == {14: "flight a"} and found["S1"] != {14: "flight b"}
    assert (found["S0"][178], found["S0"].get(3), list(found["S0"]), len(found["S0"])) == ("BOS", None, [2, 5, 178], 3)


def test_vocab_prints_words_in_the_order_of_indices(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("|w 2:1 |# two\n|w 0:1 |# zero\n")
    assert main(["vocab", "a.ctf"]) == 0
    assert capsys.readouterr().out == "w  2 words, indices to 2, 2 samples, 0 contradictions\n"
    assert main(["vocab", "a.ctf", "w"]) == 0
    assert capsys.readouterr().out == "zero\n\ntwo\n"
    assert main(["vocab", "a.ctf", "v"]) == 2
    assert "no comments follow the samples of 'v'; expected one of: w" in capsys.readouterr().err


def test_contradictions_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("|w 2:1 |# two\n|w 2:1 |# two\n|w 2:1 |# too\n")
    assert main(["vocab", "a.ctf", "w"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "\n\ntwo\n"
    assert printed.err == "cntkio: stream 'w': 1 sample of 3 have another word; --json lists them\n"
    assert main(["vocab", "--json", "a.ctf"]) == 0
    assert json.loads(capsys.readouterr().out)["w"] == {
        "words": {"2": "two"}, "num_samples": 3, "num_contradictions": 1, "others": {"2": {"too": 1}},
    }  # fmt: skip
    Path("none.ctf").write_text("|w 2:1\n")
    assert main(["vocab", "none.ctf"]) == 1


def test_a_corpus_is_read_with_its_words() -> None:
    Path("a.ctf").write_text(
        "0 |S0 2:1 |# two |S1 1:1 |# one\n1 |S0 2:1 |# too |S1 1:1 |# one |x 1\n1 |S0 2:1 |# two\n"
    )
    Path("b.ctf").write_text("2 |S0 0:1 |# zero |S1 1:1 |# one |x 1\n")
    corpus = read_ctf("a.ctf", comments=True, max_errors=9)
    assert list(corpus) == ["S0", "S1", "x"] and corpus.keys_of_sequences.tolist() == [0, 1]
    assert corpus.vocabularies.keys() == {"S0", "S1"}
    streams = StreamDefs(query=StreamDef(field="S0", shape=3, is_sparse=True))
    corpus = read_ctf(["a.ctf", "b.ctf"], streams, ids=["query"], comments=True)
    words = corpus.vocabularies["query"]
    assert [words.words[index] for index in corpus["query"].values.tolist()] == ["two", "two", "two", "zero"]
    assert (words.num_samples, words.num_contradictions, words.others) == (4, 1, {2: {"too": 1}})
    assert list(corpus.vocabularies) == ["query"]


def test_words_of_several_files_are_one_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.ctf").write_text("|w 1:1 |# one\n")
    Path("b.ctf").write_text("|w 0:1 |# zero\n")
    assert main(["vocab", "[ab].ctf", "w"]) == 0
    assert capsys.readouterr().out == "zero\none\n"

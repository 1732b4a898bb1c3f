"""The words of ids survive a text: whatever a word has, `read_vocabularies` returns it as the dictionary has it."""

import io
from pathlib import Path

import pytest
from cntkio import read_vocabularies
from cntkio.convert import txt_to_ctf

WORDS = [
    "a|b", "|b", "b|", "|", "||", "|#", "a|#b", "#1", "C#", "#", "##|##", "größe", "北京", "é|é", '"', '"a|b"', "'",
    "a:1", "1:1", "\\|", "a\u00a0b", "<unk>", "--",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_word_comes_back_from_the_comment_of_its_id(word: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text(f"{word}\nx\n", encoding="utf-8")
    for line in (f"{word} x\tx\n", f"x\t{word} x {word}\n"):
        tokens, text = io.BytesIO(line.encode()), tmp_path / "a.ctf"
        txt_to_ctf(tokens, text, [tmp_path / "words", tmp_path / "words"], annotated=True)
        found = [dict(of_stream) for of_stream in read_vocabularies(text).values()]
        assert {0: word, 1: "x"} in found
        assert all(words in ({0: word, 1: "x"}, {1: "x"}) for words in found)


@pytest.mark.parametrize("word", ["|b", "||", "|", "|#1", "a|b", "b|"])
def test_a_word_comes_back_from_the_spelling_of_the_script_of_cntk(word: str, tmp_path: Path) -> None:
    quoted = word.replace("|", "|#")
    (tmp_path / "a.ctf").write_text(f"0\t|S0 1:1 |# {quoted}\t|S1 0:1 |# {quoted}\n0\t|S0 1:1 |# {quoted}\n")
    assert {name: dict(words) for name, words in read_vocabularies(tmp_path / "a.ctf").items()} == {
        "S0": {1: word}, "S1": {0: word}
    }  # fmt: skip


def test_a_word_with_blanks_ends_before_another_comment(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("0 |w 2:1 |# New York |# a note\n1 |w 3:1 |#\n2 |w 4:1 |#x|#y |v 1:1 |# z |x 1\n")
    words = read_vocabularies(tmp_path / "a.ctf")
    assert dict(words["w"]) == {2: "New York", 4: "x|y"}
    assert dict(words["v"]) == {1: "z"}

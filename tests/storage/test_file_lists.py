"""The files that paths, patterns and lists name."""

import os
from pathlib import Path
from typing import Any

import pytest
from cntkio import ConfigError, CTFDeserializer, StreamDef, StreamDefs
from cntkio.storage.file_lists import expanded_braces, listed_files
from cntkio.storage.names import shown_files
from hypothesis import given
from hypothesis import strategies as st

X = StreamDefs(x=StreamDef(field="x", shape=1))


@pytest.fixture
def many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with some files."""
    for name in ("b.ctf", "a.ctf", "B.ctf", "10.ctf", "9.ctf", "é.ctf", ".hidden.ctf", "a.txt", "a.ctf.0123abcd.index"):
        (tmp_path / name).touch()
    for name in ("day1/x/1.ctf", "day1/2.ctf", "day2/1.ctf", "day2/notes", "[x]/1.ctf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.ctf").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("many_names")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("a.ctf", ["a.ctf"]),
        ("missing.ctf", ["missing.ctf"]),
        (Path("a.ctf"), ["a.ctf"]),
        (["b.ctf", "a.ctf"], ["b.ctf", "a.ctf"]),
        ("*.ctf", ["10.ctf", "9.ctf", "B.ctf", "a.ctf", "b.ctf", "é.ctf"]),
        ("?.ctf", ["9.ctf", "B.ctf", "a.ctf", "b.ctf", "é.ctf"]),
        ("[ab].ctf", ["a.ctf", "b.ctf"]),
        ("[!a-z].ctf", ["9.ctf", "B.ctf", "é.ctf"]),
        ("a*", ["a.ctf", "a.txt"]),
        ("day*/*.ctf", ["day1/2.ctf", "day2/1.ctf"]),
        ("day?/**/*.ctf", ["day1/2.ctf", "day1/x/1.ctf", "day2/1.ctf"]),
        ("{b,a}.ctf", ["b.ctf", "a.ctf"]),
        ("{9..10}.ctf", ["9.ctf", "10.ctf"]),
        ("day{2,1}/*.ctf", ["day2/1.ctf", "day1/2.ctf"]),
        ("part-{098..101}.ctf", ["part-098.ctf", "part-099.ctf", "part-100.ctf", "part-101.ctf"]),
        (["day2/*.ctf", "a.ctf"], ["day2/1.ctf", "a.ctf"]),
        ("[x]/*.ctf", ["[x]/1.ctf"]),
        ("[x]/1.ctf", ["[x]/1.ctf"]),
    ],
)
def test_names_stand_for_files_in_a_fixed_order(names: Any, expected: list[str]) -> None:
    assert listed_files(names) == tuple(expected)


@pytest.mark.parametrize("name", ["a[12].ctf", "what?.ctf", "a*.ctf", "{a,b}.ctf", "{0..3}"])
def test_a_literal_file_wins_over_its_meaning_as_a_pattern(many_names: Path, name: str) -> None:
    (many_names / name).touch()
    (many_names / "a1.ctf").touch()
    assert listed_files(name) == (name,)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", "a"),
        ("{a,b}{1,2}", "a1 a2 b1 b2"),
        ("{a{1..3},b}", "a1 a2 a3 b"),
        ("{3..1}", "3 2 1"),
        ("{1..7..3}", "1 4 7"),
        ("{08..11}", "08 09 10 11"),
        ("{1..03}", "01 02 03"),
        ("{a..c}", "a b c"),
        ("x{,y}", "x xy"),
        ("{a}", "{a}"),
        ("{}", "{}"),
        ("{a,b", "{a,b"),
        ("a,b}", "a,b}"),
        ("{{a,b}", "{a {b"),
        ("{a..B}", "{a..B}"),
        ("{1..b}", "{1..b}"),
        ("{1..2..0}", "1 2"),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, expected: str) -> None:
    assert expanded_braces(pattern) == expected.split(" ")


@given(st.text("{},.01a", max_size=12))
def test_the_expansion_of_any_braces_ends(text: str) -> None:
    assert expanded_braces(text)


@pytest.mark.parametrize("pattern", ["{0..1000000}", "{0..999}{0..999}{0..9}", "{0..9999999999999999999999}"])
def test_refuses_braces_for_more_than_a_million_files(pattern: str) -> None:
    with pytest.raises(ConfigError, match="more than 1,000,000 files"):
        listed_files(pattern)


@pytest.mark.usefixtures("many_names")
@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ([], ConfigError, "filename is an empty list; expected at least one file"),
        (["a.ctf", "b.ctf", "a.ctf"], ConfigError, "a.ctf is named twice, by 'a.ctf'; expected each file once"),
        (["a.ctf", "./a.ctf"], ConfigError, "./a.ctf is named twice, by 'a.ctf' and './a.ctf'"),
        (["a.ctf", "*.ctf"], ConfigError, "a.ctf is named twice, by 'a.ctf' and '*.ctf'"),
        ("day1", IsADirectoryError, "Is a folder; expected a file, or a pattern such as 'day1/*.ctf': 'day1'"),
        ("day1/", IsADirectoryError, "such as 'day1/*.ctf'"),
        (["a.ctf", "day2"], IsADirectoryError, "such as 'day2/*.ctf'"),
        ("folder.ctf", IsADirectoryError, "such as 'folder.ctf/*'"),
        (
            "day1/*.cft",
            FileNotFoundError,
            "No file matches the pattern; the folder 'day1/' has '2.ctf', 'x': 'day1/*.cft'",
        ),
        ("dya1/*.ctf", FileNotFoundError, "did you mean 'day1'"),
        ("folder.ctf/*", FileNotFoundError, "the folder 'folder.ctf/' has no files"),
        ("day{1,3}/*.ctf", FileNotFoundError, "did you mean 'day1' or 'day2'?: 'day3/*.ctf'"),
    ],
)
def test_refuses_lists_that_make_no_sense(names: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as caught:
        listed_files(names)
    assert message in str(caught.value)


def test_a_missing_file_of_a_pattern_with_braces_suggests_the_nearest_name(many_names: Path) -> None:
    (many_names / "part-000.ctf").write_text("|x 1\n")
    (many_names / "part-002.ctf").write_text("|x 1\n")
    with pytest.raises(FileNotFoundError, match=r"did you mean 'part-000.ctf' or 'part-002.ctf'\?: 'part-001.ctf'"):
        CTFDeserializer("part-{000..002}.ctf", X).open()


def test_patterns_and_lists_are_kept_as_they_are_written(many_names: Path) -> None:
    assert repr(CTFDeserializer(Path("*.ctf"), X)).startswith("CTFDeserializer('*.ctf', StreamDefs")
    assert repr(CTFDeserializer((b"a.ctf", Path("b.ctf")), X)).startswith("CTFDeserializer(['a.ctf', 'b.ctf'], Stream")
    with pytest.raises(ConfigError, match=r"filename\[1\] is 3; expected a path"):
        CTFDeserializer(["a.ctf", 3], X)  # type: ignore[list-item]
    assert shown_files([f"{index}.ctf" for index in range(4)]) == "0.ctf, 1.ctf, 2.ctf, ... (4 in all)"


def test_names_that_are_not_utf8_sort_by_their_bytes(many_names: Path) -> None:
    names = [b"\xff.bin", b"\xc3\xa9.bin", b"a.bin", b"\xf0\x9f\x98\x80.bin"]
    for name in names:
        (many_names / os.fsdecode(name)).touch()
    assert [os.fsencode(path) for path in listed_files("*.bin")] == sorted(names)

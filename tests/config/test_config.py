"""The configuration language: trees, positions, limits, and hostile input. (docs/configuration.md)"""

import contextlib
import dataclasses
import logging
import os
import random
import re
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import StreamDef, StreamDefs
from cntkio.config import ReaderConfig, keys
from cntkio.config.files import configuration
from cntkio.config.language import DEEPEST, Section, Value, elements
from cntkio.config.reader_config import Call
from cntkio.config.reading import read_section, readers_of
from cntkio.config.writing import written_config
from cntkio.errors import ConfigError
from cntkio.formats import htk, mlf
from cntkio.streams import named
from cntkio.timeline import Window
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DATA
from support.recorded import Case, cases
from support.rounds import rounds, step

PARSED = [(case, reader) for case in cases("config") if "readers" in case.spec for reader in case.spec["readers"]]
NAMES = [f"{case.name}-{'-'.join(reader['path'])}" for case, reader in PARSED]


ARRAY_OF_SECTIONS = re.compile(r"[\[{][\s,:;]*[\[{(]")
MOST_SECTIONS = 100_000


def tree_of(section: Section) -> dict[str, Any]:
    """Return the content of a section: texts, lists of the elements in parentheses, and the trees of its sections."""
    num_sections = 0

    def tree(section: Section, depth: int) -> dict[str, Any]:
        nonlocal num_sections
        num_sections += 1
        if num_sections > MOST_SECTIONS:  # variables can make many sections from a short text
            raise section.position.error("too many sections for a test", section.name)
        return {key: entry(section, key, depth) for key in section.keys}

    def entry(section: Section, key: str, depth: int) -> Any:
        value = section.value(key, own=True)
        assert value is not None
        if not value.is_section:
            return value.string
        string = value.text.string
        if string[value.begin] != "(" and not ARRAY_OF_SECTIONS.match(string, value.begin):
            return tree(section.section(key, own=True), depth + 1)
        return [element_of(element, depth + 1) for element in elements(value)]

    def element_of(element: Value, depth: int) -> Any:
        return tree(Section("", element, None, depth), depth) if element.is_section else element.string

    return tree(section, 0)


def call_of(target: type, *arguments: Any, **keywords: Any) -> Call:
    return Call(target, arguments, tuple(keywords.items()))


def asked(case: Case, path: list[str]) -> Section:
    section = configuration(case.spec["arguments"])
    for name in path:
        section = section.section(name)
    return section


@pytest.mark.parametrize(("case", "reader"), PARSED, ids=NAMES)
def test_a_section_has_the_recorded_tree(
    case: Case, reader: dict[str, Any], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(case.folder)
    if request.node.callspec.id in UNDEFINED:
        assert reader["tree"] is None and tree_of(asked(case, reader["path"]))["file"] in ("b.ctf", "inner.ctf")
        return
    if reader["tree"] is not None:
        assert tree_of(asked(case, reader["path"])) == reader["tree"]
        return
    with pytest.raises(ConfigError) as caught:
        asked(case, reader["path"])
    assert (caught.value.key or "parse") == reader["error"]["at"]
    assert caught.value.line is not None


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a = 1 ; b = 2", {"a": "1", "b": "2"}),
        ("a = x y\tz, b", {"a": "x y\tz", "b": "true"}),
        ('a = ""', {"a": ""}),
        ('"a = 1 ; b = 2"', {"a": "1", "b": "2"}),
        ("[ a = 1 ] [ b = 2 ]", {"a": "1", "b": "2"}),
        ("a = [b=1;] ; a = [c=2]", {"a": {"b": "1", "c": "2"}}),
        ("a = {b=1} ; a = {c=2}", {"a": {"c": "2"}}),
        ("a = {b=1} ; a = [c=2]", {"a": {"b": "1", "c": "2"}}),
        ('a = "" ; a = [c=2]', {"a": {"c": "2"}}),
        ('file = "x"y', {"file": "x", "y": "true"}),
        ("a [ b ] c { d }", {"a": {"b": "true"}, "c": {"d": "true"}}),
        ("a = (1:2*3:x)", {"a": ["1", "2", "2", "2", "x"]}),
        ("a = (1::2: :3)", {"a": ["1", "2", "3"]}),
        ("a = (1*0:2*-1:3)", {"a": ["3"]}),
        ("a = (../b:c)", {"a": ["../b", "c"]}),
        ("a = (./b:c)", {"a": ["./b", "c"]}),
        ("a = (;c:/b;d)", {"a": ["c:/b", "d"]}),
        ("a = ()", {"a": []}),
        ("= 5 ; a = 1", {"a": "1"}),
        ("a = x] ; b = 1", {"a": "x]", "b": "1"}),
        ("a = b = c", {"a": "b = c"}),
        ("a = 1*2", {"a": "1*2"}),
        ("A = 1 ; a = 2", {"A": "2"}),
        ("a = 1 # one", {"a": "1"}),
        ('a = "#hidden"', {"a": ""}),
        ("a = 1$b$3 ; b = 2", {"a": "123", "b": "2"}),
        ("a = $b$ ; b = [ c = 1 ]", {"a": {"c": "1"}, "b": {"c": "1"}}),
        ("Ä = 1 ; ä = 2", {"Ä": "1", "ä": "2"}),
        ('a = [ b = "x" c = 1 ]', {"a": {"b": "x", "c": "1"}}),
        ('x = "a=[1;2] b=3"', {"x": "a=[1;2] b=3"}),
        ("", {}),
    ],
)
def test_entries_are_split_as_documented(text: str, tree: dict[str, Any]) -> None:
    assert tree_of(configuration([text])) == tree


def test_comments_are_removed_from_the_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.cntk"
    path.write_text(
        "\ufeffa = 1 # one\r\n#[ b = 2\n\n \t# x\nc = 3#x # y\n\ufeffd = 4\t5\ne = [ # (\n f ]\ng = h", "utf-8"
    )
    assert tree_of(configuration([f"configFile={path}"])) == {
        "a": "1",
        "c": "3#x # y",
        "d": "4\t5",
        "e": {"f": "true"},
        "g": "h",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = [ c = 2", r"x.cntk, line 2, column 5: no closing \] found for the '\[' that opens here"),
        (
            "a = [ b = (1 ] )",
            r"line 1, column 14: unmatched bracket: '\]' here, but '\)' is expected for the '\(' of x.cntk, line 1",
        ),
        ('a = 1\n\nb = "x', r'line 3, column 5: no closing " found'),
        ("a = [\n b =\n [ c ]\n]", r"line 2, column 2: no value given for 'b' \(section a\)"),
        ("a = 1 ; a = [ b = 2 ]", "'a' is '1' at .*line 1, column 5, which cannot be merged"),
        ("a = $b$", "line 1, column 5: no variable found with the name b"),
        ("a = $b$ ; b = x$c$ ; c = $A$", "variables need each other: a > b > c > a"),
        ("a = $b$ ; b = [\n c = 1\n]", "the variable b has a value of several lines"),
        ("a = (1:2*x)", "expected a whole number after the"),
        ("a = (1:2*99999999999999999999)", "elements or more"),
        ("a = 1\rb = 2", "line 1, column 6: a line ends with CR alone"),
        ("a = 1\ninclude=x.cntk", "line 2, column 1: files include each other: x.cntk > x.cntk"),
        ("include=$a$", "takes names of files as they are"),
        ("include=gone.cntk", "cannot include 'gone.cntk': No such file"),
        ("include=a\0b", "cannot be a path"),
        ("a = [" * 101 + "]" * 101, "nested more than 100 deep"),
    ],
)
def test_errors_name_their_location(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.cntk").write_bytes(text.encode())
    with pytest.raises(ConfigError, match=message) as caught:
        tree_of(configuration(["configFile=x.cntk"]))
    assert caught.value.path == "x.cntk"
    assert f"line {caught.value.line}, " in str(caught.value)


def test_an_include_loop_shows_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("top", "include=a.cntk"), ("a", "x=1\ninclude=b.cntk"), ("b", "include=./a.cntk")):
        Path(f"{name}.cntk").write_text(text)
    with pytest.raises(
        ConfigError, match=r"b.cntk, line 1, column 1: files include each other: a.cntk > b.cntk > ./a.cntk"
    ):
        configuration(["configFile=top.cntk"])


def test_a_file_that_a_neighbour_includes_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", "include=b.cntk+c.cntk"), ("b", "x=1\ninclude=c.cntk\ny=2"), ("c", "x=3\ny=4")):
        Path(f"{name}.cntk").write_text(text)
    with caplog.at_level(logging.WARNING, "cntkio"):
        found = configuration(["configFile=a.cntk"])
    # The last value counts, which shows where the lines of c.cntk are.
    assert (found.text("x"), found.text("y")) == ("3", "2")
    assert caplog.messages == ["a.cntk, line 1, column 1: c.cntk was already read, and is skipped"]


def test_a_loop_through_a_later_neighbour_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("a", "include=b.cntk+c.cntk"), ("b", "x=1"), ("c", "include=b.cntk\ninclude=a.cntk")):
        Path(f"{name}.cntk").write_text(text)
    with pytest.raises(ConfigError, match=r"^c.cntk, line 2, column 1: files include each other: a.cntk > c.cntk > a"):
        configuration(["configFile=a.cntk"])


def test_a_chain_of_a_thousand_includes_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(1000):
        Path(f"{number}.cntk").write_text(f"a{number} = {number}\ninclude={number + 1}.cntk\n")
    Path("1000.cntk").write_text("end = here")
    identities = []
    real_path = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: identities.append(path) or real_path(path))
    assert configuration(["configFile=0.cntk"]).text("end") == "here"
    assert len(identities) <= 2 * 1001  # each takes a call for each folder of the path


@pytest.mark.parametrize("line", ["include = none.cntk", "  include=none.cntk", "Include=none.cntk"])
def test_warns_of_a_line_that_only_looks_like_an_include(
    line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x.cntk").write_text(f"a = 1\n{line}\n")
    with caplog.at_level(logging.WARNING, "cntkio"):
        assert configuration([f"configFile={tmp_path}/x.cntk"]).text("a") == "1"
    assert "x.cntk, line 2, column 1: this line includes no file" in caplog.text


def test_reading_a_pipe_or_folder_fails_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is not a regular file"):
        configuration([f"configFile={tmp_path}/pipe"])
    with pytest.raises(IsADirectoryError):
        configuration([f"configFile={tmp_path}"])


def test_a_file_named_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.cntk").write_text("a = 1")
    with pytest.raises(ConfigError, match=r"the file './x.cntk' is named twice"):
        configuration(["configFile=x.cntk", "ConfigFile=./x.cntk"])


def test_the_current_directory_changes_where_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "x.cntk").write_text("a = 1\ninclude=y.cntk")
    (tmp_path / "y.cntk").write_text("b = 2")
    found = configuration([f"currentDirectory={tmp_path}", "configFile=x.cntk"])
    assert (found.text("a"), found.text("b"), found.text("CurrentDirectory")) == ("1", "2", str(tmp_path))


@pytest.mark.parametrize("value", ["1k", "2M", "256*3:1k"])
def test_numbers_have_no_suffixes_as_in_cntk(value: str) -> None:
    with pytest.raises(ConfigError, match="CNTK has no suffixes of numbers, so write all digits"):
        configuration([f"t = [ minibatchSize = {value} ]"]).section("t").integers("minibatchSize")


def test_an_argument_is_named_by_its_number() -> None:
    with pytest.raises(
        ConfigError, match=r"argument 2, column 14: dim = 'x' is not an integer of 0 or more \(section t/r\)"
    ) as caught:
        configuration(["a=1", "t = [ r = [  dim = x ] ]"]).section("t").section("r").size("dim")
    assert (caught.value.key, caught.value.path, caught.value.line) == ("dim", None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = { x } ; a = { y }", "this 'a' replaces the entry at"),
        ("a = [ x ] ; A = [ y ]", "section 'A' is merged with 'a'"),
        ("a = x]", "']' closes no bracket"),
    ],
)
def test_warns_of_likely_mistakes(text: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cntkio"):
        configuration([text])
    assert message in caplog.text


def test_values_have_their_types() -> None:
    section = configuration(
        [
            't = T ; n = -007 ; s = 99999999999999999999 ; a = 1:2*2 ; d = default ; e = "" ; q = " 7 " ; '
            "lowest = -2147483648 ; high = 2147483648"
        ]
    )
    assert section.boolean("t") is True
    assert section.boolean("e", True) is False
    assert section.integer("n") == -7
    assert section.size("s") == 2**64 - 1
    assert section.integers("a") == (1, 2, 2)
    assert section.texts("a") == ("1", "2", "2")
    assert section.integer("q") == 7
    assert section.integer("d", 5) == 5
    assert section.integer("lowest") == -(2**31)
    assert section.text("d") == "default"
    for key, ask in (
        ("n", section.size),
        ("s", section.integer),
        ("high", section.integer),
        ("d", section.boolean),
        ("e", section.text),
        ("gone", section.text),
    ):
        with pytest.raises(ConfigError) as caught:
            ask(key)
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "r = new DataReaderPlugin [ readerType = 'HTKMLFReader' ]",
            "'new DataReaderPlugin' makes a reader in pure BrainScript",
        ),
        ("r\n[ a = 1 ]", "the bracket must open on the line of its name"),
        ("r = 5", r"it is '5'; expected \[ ... \]"),
    ],
)
def test_errors_explain_what_is_not_a_section(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration([text]).section("r")


PIECES = [
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    '"',
    "=",
    ";",
    ",",
    "\n",
    ":",
    "*",
    "2",
    "a",
    "b",
    "$a$",
    "$b$",
    "$",
    "#",
    " ",
    "|",
    "../",
    "default",
    "\r",
    "é",
    "\0",
    "include=a",
    "new x [",
]
ANY_TEXT = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@settings(max_examples=1500 // step(8))
@given(st.lists(ANY_TEXT, min_size=1, max_size=3))
def test_any_text_gives_a_tree_or_a_configuration_error(texts: list[str]) -> None:
    texts = [re.sub(r"(?i)^\s*(configfile|currentdirectory)\s*=", "x=", text) for text in texts]
    try:
        tree = tree_of(configuration(texts))
    except ConfigError:
        return
    assert isinstance(tree, dict)


@settings(max_examples=rounds(300))
@given(st.binary(max_size=80), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_file_gives_a_tree_or_a_configuration_error(head: bytes, tail: str) -> None:
    with tempfile.NamedTemporaryFile(suffix=".cntk") as file:
        file.write(head + tail.encode())
        file.flush()
        try:
            tree_of(configuration([f"configFile={file.name}"]))
        except ConfigError as error:
            assert str(error)


def test_every_prefix_of_every_configuration_gives_a_tree_or_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = cases("config")[0].folder
    monkeypatch.chdir(folder)
    for path in sorted(folder.glob("*.cntk")):
        whole = re.sub(r"(?m)^include=", "include =", path.read_text("utf-8-sig"))
        for end in range(0, len(whole), 3):
            try:
                tree_of(configuration([whole[:end]]))
            except ConfigError:
                continue


def section_of(depth: int) -> str:
    return "a = [ " * depth + "x = 1" + " ]" * depth


HUGE = 4_000_000 // step(32)
LARGE = {
    "flat": lambda: "".join(f"key{n} = value {n}  # comment\n" for n in range(HUGE // 32)),
    "sections": lambda: "".join(f'k{n} = [ x = 1 ; y = "z" ; file = $k$ ]\n' for n in range(HUGE // 45)) + "k = 1",
    "open": lambda: "[" * HUGE,
    "quotes": lambda: '"' * HUGE,
    "deep": lambda: "a=[" * 99 + "x=1;" * (HUGE // 4) + "]" * 99,
    "one line before a variable": lambda: "a = " + "x" * HUGE + "\nb = $a$",
    "dollars": lambda: "a = " + "$a" * (HUGE // 2),
    "blanks": lambda: "a = 1 ;" + " " * HUGE,
    "merged": lambda: "a=[x=1]\n" * (HUGE // 8),
}


@pytest.mark.parametrize("name", LARGE)
def test_megabytes_are_read_or_refused(name: str) -> None:
    with contextlib.suppress(ConfigError):
        configuration([LARGE[name]()]).value("a")  # a search whose time is quadratic would not end


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"a{n} = $a{n + 1}$$a{n + 1}$\n" for n in range(80)) + "a80 = xxxxxxxx",
        "".join(f"a{n} = $a{n + 1}$\n" for n in range(5000)) + "a5000 = x",
        'd = "$" ; n = "[ x = $d$n$d$ ]" ; z = $n$',
        'd = "$" ; n = "[ x = $d$n$d$ ; y = $d$n$d$ ]" ; z = $n$',
        "a = (x*1000000:y*1000000)",
    ],
)
def test_refuses_configurations_that_grow_without_bound(text: str) -> None:
    with pytest.raises(ConfigError):
        tree_of(configuration([text]))


def test_sections_are_read_up_to_the_documented_depth() -> None:
    tree = tree_of(configuration([section_of(DEEPEST)]))
    for _ in range(DEEPEST):
        tree = tree["a"]
    assert tree == {"x": "1"}


# ----------------------------------------------------------------------------------------------------------- readers

# Results of cntkio where CNTK's result is debatable (marked so in the cases).
KINDER = {
    "composite-windows-none-reader": "randomize = none reads in order, as it does in every other reader",
    "composite-errors-noModule-reader": "module is pointless today, and only a wrong one is refused",
}
# Variables without a value spoil a whole section in CNTK; here only the entries that use them.
UNDEFINED = {
    "variable-undefined-elsewhere-test-reader": "the entry that uses the variable is not needed",
    "variable-scope-lost-reader": "the variable is defined in the section itself",
}
# Settings that CNTK refuses although the pages of its formats promise them.
PROMISED = {
    "composite-windows-ctfBad-reader": "a window in samples is by default all data",
    "htkmlf-forms-none-reader": "randomize = none disables randomization altogether",
    "htkmlf-forms-boolean-reader": "randomize is true or false",
    "htkmlf-forms-lonely-reader": "features alone are read",
}
# A semicolon divides the names of several files, unless a file has the whole name: CNTK knows only whole names.
WITH_SEMICOLONS = {"quotes-train-reader": "my dir/a;b,c[1](2).ctf"}


def with_the_file(folder: Path, name: str, tmp_path: Path) -> Path:
    """Return a copy of a folder that also has an empty file of this name."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    (copy / name).touch()
    return copy


@pytest.mark.parametrize("target", keys.KEYWORDS, ids=lambda target: target.__name__)
def test_every_key_of_a_deserializer_sets_a_field_with_the_same_default(target: Any) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(target)}
    for option in keys.KEYWORDS[target]:
        assert option.default == fields[option.name]


@pytest.mark.parametrize("kind", keys.ATTRIBUTES)
def test_every_key_of_a_reader_sets_an_attribute_of_its_type(kind: keys.Kind) -> None:
    config = ReaderConfig("", kind, ())
    for option in keys.ATTRIBUTES[kind]:
        assert type(getattr(config, option.name)) is type(option.default)


def recorded_deserializer(call: Call) -> dict[str, Any]:
    keywords = dict(call.keywords)
    if call.name == "CTFDeserializer":
        file, streams = call.arguments
        return {
            "type": "CTF",
            "file": file,
            "streams": [
                {
                    "name": name,
                    "alias": stream.stream_alias,
                    "dim": stream.dim,
                    "format": "sparse" if stream.is_sparse else "dense",
                    "defines_mb_size": stream.defines_mb_size,
                }
                for name, stream in named(streams)
            ],
            "skip_sequence_ids": keywords.get("skip_sequence_ids", False),
            "max_errors": keywords.get("max_errors", 0),
            "chunk_size": keywords.get("chunk_size_in_bytes", 32 << 20),
            "cache_index": keywords.get("cache_index", False),
            "trace_level": call.trace_level,
        }
    if call.name == "CBFDeserializer":
        streams = call.arguments[1] if len(call.arguments) > 1 else {}
        return {
            "type": "CBF",
            "file": call.arguments[0],
            "rename": {stream.stream_alias: name for name, stream in streams.items()},
            "trace_level": call.trace_level,
        }
    ((name, stream),) = call.arguments[-1].items()
    if call.name == "HTKFeatureDeserializer":
        return {
            "type": "HTKFeature",
            "stream": name,
            "dim": stream.dim,
            "scp": stream.scp,
            "prefix": keywords.get("prefix", ""),
            "context": list(stream.get("context", (0, 0))),
            "expand_to_utterance": stream.get("broadcast", False),
        }
    mlf = stream.get("mlf")
    record = {
        "type": "HTKMLF",
        "stream": name,
        "dim": stream.dim,
        "mlf": [mlf] if isinstance(mlf, str) else mlf,
        "label_mapping": call.arguments[0],
        "phone_boundaries": keywords.get("phoneBoundaries", False),
    }
    if "stream_options" in keywords:
        record["mlf_list_file"] = keywords["stream_options"][name]["mlfFileList"]
    return record


def recorded_reader(config: ReaderConfig) -> dict[str, Any]:
    window = config.window
    record: dict[str, Any] = {
        "kind": config.kind,
        "precision": config.precision,
        "packing": config.packing,
        "randomization": {"enabled": False}
        if window is None
        else {
            "enabled": True,
            "window": None if window.size == 2**62 - 1 else window.size,
            "unit": window.unit,
            "seed": config.randomization_seed,
        },
        "deserializers": [recorded_deserializer(call) for call in config.calls],
    }
    if config.kind in ("CNTKTextFormatReader", "CNTKBinaryReader"):
        record["keep_data_in_memory"] = config.keep_data_in_memory
    if config.kind in ("HTKMLFReader", "HTKDeserializers"):
        record["minibatch_mode"] = config.minibatch_mode
    if config.packing == "truncated":
        record["truncation_length"] = config.truncation_length
        if config.kind != "composite":
            record["utterances_per_minibatch"] = list(config.utterances_per_minibatch)
    return record


def understood(case: Case, path: list[str]) -> ReaderConfig:
    return read_section(configuration(case.spec["arguments"]), path)


@pytest.mark.parametrize(("case", "reader"), PARSED, ids=NAMES)
def test_a_reader_has_the_recorded_meaning(
    case: Case,
    reader: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(case.folder)
    name = request.node.callspec.id
    if name in WITH_SEMICOLONS:
        file = WITH_SEMICOLONS[name]
        assert list(understood(case, reader["path"]).calls[0].arguments[0]) == file.split(";")
        monkeypatch.chdir(with_the_file(case.folder, file, tmp_path))
    if name in KINDER or name in PROMISED or name in UNDEFINED:
        assert reader["reader"] is None and (name not in KINDER or reader["debatable"])
        assert understood(case, reader["path"]).calls
        return
    if reader["reader"] is not None:
        assert recorded_reader(understood(case, reader["path"])) == reader["reader"]
        return
    with pytest.raises(ConfigError) as caught:
        understood(case, reader["path"])
    assert (caught.value.key or "parse") == reader["error"]["at"]
    assert caught.value.line is not None


VALUES = [
    "true",
    "none",
    "auto",
    "-1",
    "0",
    "1e9",
    "9" * 20,
    "(a:b)",
    "[x=1]",
    "",
    '""',
    "a\0b",
    "$x$",
    "default",
    "1:2*-5",
]


def mutated(text: str, chance: random.Random) -> str:
    """Draw a configuration that is cut off, or has a few pieces missing, repeated or changed."""
    for _ in range(chance.randint(1, 4)):
        at, other = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        values = list(re.finditer(r"=\s*([^\s;\[\]{}]+)", text))
        kind = chance.randrange(5)
        if kind == 0:
            text = text[:at] + text[at + chance.randint(1, 9) :]
        elif kind == 1:
            text = text[:at] + chance.choice(PIECES + VALUES) + text[at:]
        elif kind == 2 and values:
            begin, end = chance.choice(values).span(1)
            text = text[:begin] + chance.choice(VALUES) + text[end:]
        elif kind == 3:
            text = text[:other] + text[at:other] + text[other:]
        elif kind == 4 and chance.random() < 0.3:
            text = text[:at]
    return re.sub(r"(?im)^include=|^\s*(configfile|currentdirectory)\s*=", "x=", text)


@pytest.mark.parametrize("seed", range(20))
def test_a_mutated_configuration_is_read_or_is_a_configuration_error(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    folder = cases("config")[0].folder
    monkeypatch.chdir(folder)
    pages = DATA / "config_pages"
    texts = [path.read_text("utf-8-sig") for path in sorted([*folder.glob("*.cntk"), *pages.glob("*.cntk")])]
    num_read = 0
    for _ in range(150):
        try:
            top = configuration([mutated(chance.choice(texts), chance)])
            for section in readers_of(top):
                config = read_section(top, section)
                assert config.to_python() and config.facts()
                num_read += 1
        except ConfigError as error:
            assert str(error)
    assert num_read


READS = [(case, reader["path"]) for case, reader in PARSED if reader["reader"] is not None]


@pytest.mark.parametrize(("case", "path"), READS, ids=[f"{case.name}-{'-'.join(path)}" for case, path in READS])
def test_the_printed_program_makes_the_same_source(
    case: Case, path: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.folder)
    config = understood(case, path)
    made: list[tuple[Any, dict[str, Any]]] = []

    class Recorder:
        num_samples = 100

        def __init__(self, deserializers: Any, **options: Any) -> None:
            made.append((deserializers, options))

        def begin_epoch(self, begin: int, end: int) -> None:
            made.append((begin, end))

        def minibatches(self, size: int) -> list[Any]:
            made.append((size, None))
            return []

        def epoch(self, number: int, size: int, epoch_size: int = 0) -> list[Any]:
            self.begin_epoch(number, epoch_size or self.num_samples)
            return self.minibatches(size)

    monkeypatch.setattr(cntkio, "HTKMLFReader" if config.kind == "HTKMLFReader" else "MinibatchSource", Recorder)
    for target in {call.target for call in config.calls}:
        monkeypatch.setattr(cntkio, target.__name__, partial(call_of, target))
    exec(compile(config.to_python(), "printed", "exec"), {})
    assert [dataclasses.replace(call, trace_level=1) for call in config.calls] == made[0][0]
    assert made[0][1] == config.source_options()
    size = config.minibatch_size()
    if config.kind != "HTKMLFReader" and config.packing == "truncated" and not config.truncation_length:
        size *= config.utterances_per_minibatch[0]
    assert made[1:] == [(0, config.epoch_size or 100), (size, None)]


NUM_SEQUENCES = 5


def write_data_for(config: ReaderConfig) -> None:
    """Write the files of the deserializers into the working directory. All have sequences with the ids 0, 1, ..."""
    length = 1 if config.packing == "frame" else 3

    def utterances(num_frames: int, dim: int) -> list[tuple[str, Any]]:
        return [(str(n), n + np.arange(num_frames * dim).reshape(-1, dim) / 8) for n in range(NUM_SEQUENCES)]

    for call in config.calls:
        keywords = dict(call.keywords)
        if call.name in ("CTFDeserializer", "CBFDeserializer"):
            path = Path(call.arguments[0])
            streams = call.arguments[1] if len(call.arguments) > 1 else StreamDefs(x=StreamDef(field="x", shape=2))
            text = path.with_name(path.name + ".text") if call.name == "CBFDeserializer" else path
            path.parent.mkdir(parents=True, exist_ok=True)
            fields = {}
            for stream in streams.values():
                dim = stream.get("dim", 2)
                values = "0:1" if stream.is_sparse else " ".join(["0.5"] * dim)
                form = StreamDef(field=stream.stream_alias, shape=dim, is_sparse=stream.is_sparse)
                fields[stream.stream_alias] = (values, form)
            line = " ".join(f"|{name} {values}" for name, (values, _) in fields.items())
            text.write_text("".join(f"{n} {line}\n" * length for n in range(NUM_SEQUENCES)))
            if call.name == "CBFDeserializer":
                plain = StreamDefs({name: stream for name, (_, stream) in fields.items()})
                cntkio.write_cbf(path, cntkio.CTFDeserializer(text, plain, dtype=keywords["dtype"]))
            continue
        ((name, stream),) = call.arguments[-1].items()
        if call.name == "HTKFeatureDeserializer":
            num_frames = 1 if stream.get("broadcast", False) else length
            Path(stream.scp).parent.mkdir(parents=True, exist_ok=True)
            archive = Path(keywords.get("prefix", "").replace("\\", "/")).resolve() / f"{name}.ark"
            archive.parent.mkdir(parents=True, exist_ok=True)
            htk.write_archive(archive, stream.scp, utterances(num_frames, stream.dim))
            if "prefix" in keywords:
                scp = Path(stream.scp)
                scp.write_text(scp.read_text().replace(str(archive), archive.name))
            continue
        mlf_path = stream.get("mlf")
        if mlf_path is None:
            (listed,) = keywords["stream_options"].values()
            mlf_path = f"{name}.mlf"
            Path(listed["mlfFileList"]).write_text(f"{mlf_path}\n")
        files = [mlf_path] if isinstance(mlf_path, str) else mlf_path
        for number, file in enumerate(files):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            own = [(str(n), np.zeros(length, int)) for n in range(NUM_SEQUENCES) if n % len(files) == number]
            mlf.write_mlf(file, own, ["a"])
        if call.arguments[0] is not None:
            Path(call.arguments[0]).parent.mkdir(parents=True, exist_ok=True)
            mlf.write_mapping(call.arguments[0], ["a"])


@pytest.mark.parametrize(("case", "path"), READS, ids=[f"{case.name}-{'-'.join(path)}" for case, path in READS])
def test_the_printed_program_opens_the_same_source(
    case: Case,
    path: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = WITH_SEMICOLONS.get(f"{case.name}-{'-'.join(path)}")
    monkeypatch.chdir(case.folder if file is None else with_the_file(case.folder, file, tmp_path))
    config = understood(case, path)
    monkeypatch.chdir(tmp_path)
    write_data_for(config)
    program = compile(config.to_python(), "printed", "exec")
    if (
        case.name == "composite-array-forms" and len(config.calls) > 1
    ):  # it reads, but both deserializers have a stream of the same name
        for attempt in (config.open, lambda: exec(program, {})):
            with pytest.raises(ConfigError, match="two streams have the name 'x'"):
                attempt()
        return
    with config.open() as source:
        fresh = source.state_dict()
        expected = [f"{minibatch.num_sequences} {minibatch.end_of_sweep}" for minibatch in config.epoch(source)]
    exec(program, names := {})
    assert capsys.readouterr().out.splitlines() == expected
    state = names["source"].state_dict()
    names["source"].close()
    assert (state["settings"], state["data"]) == (fresh["settings"], fresh["data"])
    assert expected


@pytest.mark.parametrize(("case", "path"), READS, ids=[f"{case.name}-{'-'.join(path)}" for case, path in READS])
def test_a_written_configuration_is_read_as_the_same_reader(
    case: Case, path: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.folder)

    def silent(config: ReaderConfig) -> ReaderConfig:
        calls = tuple(dataclasses.replace(call, trace_level=1) for call in config.calls)
        return dataclasses.replace(config, section="", trace_level=1, calls=calls)

    config = understood(case, path)
    text = written_config("again", config)
    section = ["again", "reader"] if 'action = "train"' in text else ["again"]
    assert silent(read_section(configuration([text]), section)) == silent(config)


def test_evaluating_the_repr_of_a_reader_configuration_makes_it_again() -> None:
    config = read_section(
        configuration(["train = [ reader = [ file = a ; input = [ x = [ dim = 2 ; format = dense ] ] ] ]"])
    )
    names = {"ReaderConfig": ReaderConfig, "Window": Window, "StreamDefs": StreamDefs, "StreamDef": StreamDef}
    names["CTFDeserializer"] = partial(call_of, cntkio.CTFDeserializer)
    assert eval(repr(config), names) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.section = "x"  # type: ignore[misc]


def test_a_variable_that_no_entry_of_the_reader_uses_is_not_needed() -> None:
    input_section = "input = [ x = [ dim = $Dim$ ; format = dense ] ]"
    top = configuration(
        [f"train = [ modelPath = $RunDir$/m ; list = ($RunDir$:b) ; reader = [ file = a.ctf ; {input_section} ] ]"]
    )
    with pytest.raises(
        ConfigError, match=r"argument 1, column 106: no variable .* Dim: give Dim=\.\.\. as an argument"
    ):
        read_section(top, "train")
    with pytest.raises(
        ConfigError, match=r"RunDir: give RunDir=\.\.\. as an argument, or define it in the section of 'list'"
    ):
        top.section("train").texts("list")
    top = configuration([top.value("train").text.string, "Dim=3"])  # type: ignore[union-attr]
    (call,) = read_section(top, "train").calls
    assert repr(call) == "CTFDeserializer('a.ctf', StreamDefs(x=StreamDef(field='x', shape=3)))"


@pytest.mark.parametrize("entry", ["deviceId = $DeviceId$", "modelPath = $RunDir$/m", "x = [ y = $RunDir$ ]"])
def test_a_variable_without_a_value_outside_the_reader_is_not_needed(entry: str) -> None:
    reader = "reader = [ file = a.ctf ; traceLevel = 0 ; input = [ x = [ dim = 3 ; format = dense ] ] ]"
    top = configuration([f"RunDir = $Root$/run\n{entry}\ntrain = [\n{entry}\n{reader}\n]"])
    (call,) = read_section(top, "train").calls
    assert repr(call) == "CTFDeserializer('a.ctf', StreamDefs(x=StreamDef(field='x', shape=3)))"


def test_an_error_names_all_variables_without_a_value() -> None:
    streams = "input = [ x = [ dim = $Dim$ ; format = dense ] ]"
    reader = f"reader = [ file = $Dir$/$Name$ ; maxErrors = $Errors$ ; randomize = $Random$ ; {streams} ]"
    with pytest.raises(ConfigError) as caught:
        read_section(configuration([f"train = [ {reader} ; modelPath = $RunDir$ ]"]), "train")
    names = ["Dir", "Name", "Dim", "Errors", "Random"]
    assert f": give {' '.join(f'{name}=...' for name in names)} as arguments" in str(caught.value)
    assert "RunDir" not in str(caught.value)
    given = [f"{name}=1" for name in names]
    assert read_section(configuration([f"train = [ {reader} ]", *given]), "train").calls


def test_refuses_texts_that_are_too_long_for_configurations(tmp_path: Path) -> None:
    line = "a = 1".ljust(119) + "\n"
    (tmp_path / "long.cntk").write_text(line * 35_000)
    (tmp_path / "many.cntk").write_text("include=" + "+".join(f"{tmp_path}/{n}.cntk" for n in range(5)))
    for number in range(5):
        (tmp_path / f"{number}.cntk").write_text(line * 10_000)
    for name, place in (("long", "long.cntk"), ("many", "3.cntk, line 4953, column 1")):
        with pytest.raises(ConfigError, match=f"{place}: more than 4194304 characters"):
            configuration([f"configFile={tmp_path}/{name}.cntk"])
    with pytest.raises(ConfigError, match="argument 1, column 1: more than 4194304 characters"):
        configuration([line * 35_000])


@pytest.mark.parametrize(
    ("text", "arguments", "options", "words"),
    [
        ("t=[reader=[file=a\ninput=[x=[dim=2 format=dense]]]]", (), {"section": "t"}, "separate entries on one line"),
        ("", (3,), {}, "overrides are (3,); expected texts such as"),
        ("", (), {"section": 3}, 'section is 3; expected a path such as "train/reader"'),
    ],
)  # fmt: skip
def test_a_plausible_mistake_says_what_to_write(
    tmp_path: Path, text: str, arguments: Any, options: Any, words: str
) -> None:
    (tmp_path / "a.cntk").write_text(text)
    with pytest.raises(ConfigError) as caught:
        cntkio.read_config(tmp_path / "a.cntk", *arguments, **options).open()
    assert words in str(caught.value)

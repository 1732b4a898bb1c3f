"""The rules of the house: allowed imports, private names, and sizes of classes and functions.

The architecture page draws the rooms and the imports between them. A list of exceptions in this file is exact: a new
exception fails, and so does an entry that is no longer needed. The lists may only become shorter.

    python tests/test_house.py        print the sizes of rooms, classes and functions
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cntkio
import pytest
from cntkio.cli import main
from support import ROOT, house

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LONGEST_CLASS = 400
LONGEST_PRIVATE_CLASS = 300
MOST_MEMBERS = 8
MOST_PARAMETERS = 7
MOST_ITEMS = 3
IRIS = ROOT / "examples" / "iris" / "iris.ctf"
# Modules and functions of which a walk enters at most so many.
MOST_TO_OPEN, MOST_TO_READ, MOST_TO_CONVERT = (20, 120), (12, 55), (26, 220)

# Sizes of the package.
MOST_LINES, MOST_CLASSES, MOST_MODULES = 48_000, 429, 147
MOST_LINES_OF_A_FORMAT = 100
NOT_FOR_PLAIN_FILES = {
    f"storage.{name}" for name in ("block_cache", "compressed", "file_lists", "index_cache", "remote", "stores")
}
VAGUE_NAMES = {"utils", "util", "base", "manager", "common", "helpers", "helper", "misc"}

# -- exceptions, one a line: the room, and its violation ---------------------------------------------------------------

IMPORTS_NOT_DRAWN: set[str] = set()
PRIVATE_NAMES_OF_OTHERS: set[str] = set()
IMPORTED_BY_TEXT = {
    "__init__",  # frameworks, on first use
}
QUESTIONS_OF_TYPE = {
    "htkmlf_reader isinstance HTKFeatureDeserializer",
}
LONG_CLASSES: set[str] = set()
LARGE_PROTOCOLS: set[str] = set()
RUST_MODULES_IN_CIRCLES: set[str] = set()
LONG_SIGNATURES: set[str] = set()
LONG_TUPLES: set[str] = set()
SILENCED_LINTS = {
    "simd functions",  # a table of functions; the methods of `Kernel` name the arguments
}
NAMES_WITH_SEVERAL_MEANINGS = {
    "Padded", "Ragged", "Truncated", "convert",  # the same names for the same things in PyTorch and JAX
    "check", "described", "in_words",  # a verb of the command, and the function that it calls
    "read_ctf",  # as arrays, and as a data set of Ray
    "in_files",  # how the verbs read a format: the name is the same in each folder
    "Facts", "Loaded", "Value", "advice", "has_text_keys", "joined",
}  # fmt: skip
CIRCLES_BY_LATE_IMPORT = {
    "source config",  # `MinibatchSource.from_config`
}
# Modules that a single module imports, and why they are not a part of it. A package's `__init__` does not count.
USED_BY_ONE = {
    "cli.bench", "cli.check", "cli.convert", "cli.diff", "cli.plan",  # a file per verb
    "cli.arguments", "cli.parsing",  # what argparse knows, and how its parsers differ
    "config.deserializers", "config.writing", "survey.contents",  # too large for one file
    "arrow.columns", "arrow.memory",  # the same
    "formats.kaldi.objects",  # bytes, next to options and opened corpora
    "source.packing",  # a stage, which tests replace
    "storage.shared",  # memory of the system, next to tables
    "torch.workers",  # what is done to PyTorch
    "io", "transforms",  # names of CNTK
}  # fmt: skip
PRIVATE_NAMES_IN_TESTS: set[str] = set()


# -- rooms -------------------------------------------------------------------------------------------------------------


def table(heading: str) -> list[list[str]]:
    """Return the rows of a table in the section about rooms, by the heading of its second column."""
    section = re.split(r"^## ", PAGE.split("\n## The rooms\n")[1], flags=re.MULTILINE)[0]
    lines = section[section.index(f"| room | {heading} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


DRAWN = {names_in(room)[0]: set(names_in(imports)) for room, _, imports in table("contents")}
LATE = {(names_in(room)[0], other) for room, imports, _ in table("imports late") for other in names_in(imports)}


def room_of(module: str) -> str:
    """Return the room of a module: the longest beginning of its name that the page draws."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in DRAWN), parts[0])


def found(module: str) -> Iterator[str]:
    """Return the imports of a module that the page does not draw."""
    room = room_of(module)
    for one in house.imports_of(module):
        other = one.imported if one.imported == "_core" else room_of(one.imported)
        if one.is_late:
            if other not in DRAWN[room] | {room} and (room, other) not in LATE:
                yield f"{room} imports {other} late"
        elif other not in DRAWN[room] | {room}:
            yield f"{room} imports {other}"


def exactly(actual: set[str], expected: set[str], what: str) -> None:
    assert not actual - expected, f"{what}: {sorted(actual - expected)}; see docs/architecture.md"
    assert not expected - actual, f"no longer an exception, take it off the list: {sorted(expected - actual)}"


def test_every_module_has_a_room() -> None:
    assert {room_of(module) for module in house.modules()} == {*DRAWN, "__init__"}


def test_a_room_imports_only_what_the_architecture_page_draws() -> None:
    imports = {one for module in house.modules() if module != "__init__" for one in found(module)}
    exactly(imports, IMPORTS_NOT_DRAWN, "imports that are not drawn")


def test_every_late_import_that_the_page_lists_is_there() -> None:
    late = {(room_of(m), room_of(one.imported)) for m in house.modules() for one in house.imports_of(m) if one.is_late}
    assert late >= LATE


def test_rooms_form_no_circle() -> None:
    assert not house.circles({room: imports & set(DRAWN) for room, imports in DRAWN.items()})


def test_modules_form_no_circle_when_they_are_imported() -> None:
    assert not house.circles(house.import_edges())


def test_no_module_of_the_package_is_imported_by_text() -> None:
    actual = {room_of(module) for module in house.modules() if list(house.modules_imported_by_text(module))}
    exactly(actual, IMPORTED_BY_TEXT, "imported by a text")


def test_no_room_uses_private_names_of_others() -> None:
    actual = {
        f"{room_of(m)} {name}" for m, path in house.modules().items() for name in house.foreign_private_names(path)
    }
    exactly(actual, PRIVATE_NAMES_OF_OTHERS, "private names of other modules")


def test_sources_do_not_ask_what_kind_of_corpus_or_timeline_they_have() -> None:
    contracts = ("formats", "timeline")
    actual = {
        f"{room_of(module)} {' '.join(question)}"
        for module in house.modules()
        if room_of(module) in ("source", "htkmlf_reader")
        for question in house.questions_of_type(module, contracts)
    }
    exactly(actual, QUESTIONS_OF_TYPE, "questions about a type; extend the contract instead")


def test_classes_are_small() -> None:
    long = {
        one.name
        for one in house.classes()
        if one.lines > (LONGEST_PRIVATE_CLASS if house.is_private(one.name) else LONGEST_CLASS)
    }
    exactly(long, LONG_CLASSES, f"classes of more than {LONGEST_CLASS} lines, or {LONGEST_PRIVATE_CLASS} if private")


def test_protocols_are_small() -> None:
    large = {name for name, members in house.protocols() if len(members) > MOST_MEMBERS}
    exactly(large, LARGE_PROTOCOLS, f"protocols of more than {MOST_MEMBERS} members")


def test_a_public_name_has_one_meaning_in_all_rooms() -> None:
    actual = {
        name for name, modules in house.public_names().items() if len({room_of(module) for module in modules}) > 1
    }
    exactly(actual, NAMES_WITH_SEVERAL_MEANINGS, "public names that two rooms define")


def test_modules_that_form_a_circle_by_a_late_import_are_listed() -> None:
    edges = house.import_edges()
    late = {(module, one.imported) for module in edges for one in house.imports_of(module) if one.is_late}
    actual = {
        f"{room_of(module)} {room_of(other)}"
        for module, other in late
        if any({module, other} <= circle for circle in house.circles({**edges, module: edges[module] | {other}}))
    }
    exactly(actual, CIRCLES_BY_LATE_IMPORT, "circles by late import")


def test_a_module_that_one_other_uses_has_a_reason() -> None:
    actual = {
        module
        for module, users in house.users().items()
        if len(users) == 1 and not any(module.rpartition(".")[0] == user for user in users) and users != {"__main__"}
    }
    exactly(actual, USED_BY_ONE, "modules that a single module uses; make them a part of it")


def test_the_package_stays_small() -> None:
    paths = house.modules().values()
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in paths)
    assert lines <= MOST_LINES
    assert len(paths) <= MOST_MODULES
    assert len([*house.classes()]) <= MOST_CLASSES


def is_short(entered: set[house.Entered], most: tuple[int, int]) -> None:
    modules = {one.module for one in entered}
    assert not modules & NOT_FOR_PLAIN_FILES
    assert len(modules) <= most[0], sorted(modules)
    assert len(entered) <= most[1], sorted(entered)


def test_opening_a_plain_file_is_a_short_walk() -> None:
    corpus = cntkio.CTFDeserializer(IRIS, cntkio.StreamDefs(x=cntkio.StreamDef("lengths", 4)))
    with house.walk() as entered:
        cntkio.MinibatchSource(corpus).close()
    is_short(entered, MOST_TO_OPEN)


def test_the_second_minibatch_is_a_short_walk_on_all_threads() -> None:
    corpus = cntkio.CTFDeserializer(IRIS, cntkio.StreamDefs(x=cntkio.StreamDef("lengths", 4)))
    with cntkio.MinibatchSource(corpus) as source, house.walk() as entered:
        source.next_minibatch(16)
        time.sleep(0.1)  # until the threads have prepared the next
        entered.clear()
        source.next_minibatch(16)
        time.sleep(0.1)
    is_short(entered, MOST_TO_READ)


def test_converting_a_plain_file_is_a_short_walk_and_opens_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, open_file = list[str](), os.open

    def counted(path: Any, *flags: Any, **options: Any) -> int:
        opened.append(str(path))
        return open_file(path, *flags, **options)

    monkeypatch.setattr(os, "open", counted)
    with house.walk() as entered:
        main(["convert", str(IRIS), str(tmp_path / "a.cbf")])
    is_short(entered, MOST_TO_CONVERT)
    assert opened.count(str(IRIS)) == 1


def test_an_option_of_order_is_in_the_files_that_the_page_lists() -> None:
    rows = PAGE.split("`right_splice` (a test compares this table with the code):")[1].split("\n\n")[1].splitlines()[2:]
    listed = {re.findall(r"`([\w/.]+)`", row)[0] for row in rows}
    actual = {
        path.relative_to(house.PACKAGE).as_posix()
        for module, path in house.modules().items()
        if "right_splice" in path.read_text(encoding="utf-8") and room_of(module) != "config"
    }
    assert actual == listed


def test_the_caller_is_the_only_ambient_value() -> None:
    texts = {module: path.read_text(encoding="utf-8") for module, path in house.modules().items()}
    actual = [module for module, text in texts.items() if "ContextVar(" in text or "threading.local(" in text]
    assert actual == ["arguments"]


def test_a_format_and_its_writer_take_at_most_a_hundred_lines() -> None:
    text = (house.TESTS / "support" / "toy_format.py").read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES_OF_A_FORMAT


def test_no_module_has_a_vague_name() -> None:
    assert not {module for module in house.modules() if VAGUE_NAMES & set(module.split("."))}


# -- Rust --------------------------------------------------------------------------------------------------------------

MODULES_WITH_UNSAFE = {"compressed inflate", "python file", "python objects"}


def test_crates_use_only_the_crates_that_the_page_lists() -> None:
    section = PAGE[PAGE.index("| Rust | contents | uses |") :].split("\n\n")[0].splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in section]
    drawn = {row[0].strip("`").removeprefix("crates/"): set(names_in(" ".join(row[2:]))) for row in cells}
    manifests = {path.parent.name: path.read_text(encoding="utf-8") for path in house.CRATES.glob("*/Cargo.toml")}
    used = {name: set(re.findall(r'path = "../(\w+)"', text)) for name, text in manifests.items()}
    assert used == drawn


def test_unsafe_code_is_only_where_the_page_says() -> None:
    code = re.compile(r"^[^/\n]*\bunsafe (?:\{|fn|impl)", re.MULTILINE)
    actual = {
        f"{crate.name} {module}"
        for crate in house.crates()
        if crate.name not in ("memory", "simd")
        for module, path in crate.files.items()
        if code.search(path.read_text(encoding="utf-8"))
    }
    exactly(actual, MODULES_WITH_UNSAFE, "modules with unsafe code")


def test_modules_of_a_crate_form_no_circle() -> None:
    circles = {crate.name: house.circles(house.rust_edges(crate)) for crate in house.crates()}
    actual = {f"{name} {module}" for name, found in circles.items() for circle in found for module in circle}
    exactly(actual, RUST_MODULES_IN_CIRCLES, "modules in circles")


# -- the boundary ------------------------------------------------------------------------------------------------------


def test_functions_of_the_core_take_at_most_seven_arguments() -> None:
    long = {name for name, count in house.signatures(house.STUB) if count > MOST_PARAMETERS}
    exactly(long, LONG_SIGNATURES, f"functions of the core with more than {MOST_PARAMETERS} arguments; pass an object")


def test_tuples_at_the_boundary_have_at_most_three_items() -> None:
    long = {name for name, count in house.tuples(house.STUB) if count > MOST_ITEMS}
    exactly(long, LONG_TUPLES, f"tuples of more than {MOST_ITEMS} items; give the items names in a class")


def test_no_lint_about_long_signatures_and_types_is_silenced() -> None:
    lints = re.compile(r"clippy::(too_many_arguments|type_complexity)")
    actual = {
        f"{crate.name} {module}"
        for crate in house.crates()
        for module, path in crate.files.items()
        if lints.search(path.read_text(encoding="utf-8"))
    }
    exactly(actual, SILENCED_LINTS, "modules that silence a lint about long signatures or types")


# -- tests -------------------------------------------------------------------------------------------------------------


def test_names_of_tests_have_at_most_twelve_words() -> None:
    names = {name for path in house.TESTS.rglob("test_*.py") for name in house.names_of_functions(path)}
    assert not {name for name in names if name.startswith("test_") and name.count("_") > 12}


def test_no_test_module_imports_another() -> None:
    for path in house.TESTS.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(from|import) +([\w.]+\.)?test_", text, re.MULTILINE), path


def test_only_tests_of_adapters_import_libraries_that_change_forks() -> None:
    # JAX warns of every later fork of its process, and polars stops interrupts.
    libraries = {"jax", "torch", "polars", "datasets", "duckdb", "ray"}
    modules = {path for path in house.TESTS.rglob("test_*.py") if not {"adapters", "trainers"} & {*path.parts}}
    modules.remove(house.TESTS / "test_types.py")  # `make check` runs it, in a process of its own
    assert not {path for path in modules if libraries & {*house.libraries_of(path)}}


def test_a_plain_pytest_collects_every_folder_of_tests_once() -> None:
    folders = {path.relative_to(house.TESTS).parts[0] for path in house.TESTS.rglob("test_*.py")}
    assert all(re.match("[b-z]", name) for name in folders - {"adapters"}), "pyproject.toml, testpaths"


def test_tests_use_no_private_names_of_the_package() -> None:
    actual = {name for path in house.TESTS.rglob("*.py") for name in house.foreign_private_names(path)}
    exactly(actual, PRIVATE_NAMES_IN_TESTS, "private names in tests")


def test_the_checks_find_what_they_forbid(tmp_path: Path) -> None:
    program = "from a import _b\nclass C:\n    def f(self, x):\n        self._own = 1\n        x._own, x._far, self._up"
    (tmp_path / "a.py").write_text(program)
    assert house.foreign_private_names(tmp_path / "a.py") == {"_b", "_far", "_up"}
    assert house.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]
    stub = "_T = tuple[int, str, None]\nclass C:\n    def f(self, x: tuple[int, ...], *, y: list[_T]) -> int: ..."
    (tmp_path / "a.pyi").write_text(stub)
    assert set(house.signatures(tmp_path / "a.pyi")) == {("f", 2)}
    assert set(house.tuples(tmp_path / "a.pyi")) == {("tuple[int, str, None]", 3)}
    (tmp_path / "lib.rs").write_text("mod a; mod b; pub use a::One;")
    (tmp_path / "a.rs").write_text("use crate::{b::{Two, self}};")
    (tmp_path / "b.rs").write_text("use super::One; #[cfg(test)] mod tests { use crate::c; }")
    files = {"": tmp_path / "lib.rs", "a": tmp_path / "a.rs", "b": tmp_path / "b.rs"}
    assert house.rust_edges(house.Crate("x", files)) == {"": set(), "a": {"b"}, "b": {"a"}}


# -- names and pages ---------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_documented_and_listed_once() -> None:
    assert len(set(cntkio.__all__)) == len(cntkio.__all__)
    for name in cntkio.__all__:
        value = getattr(cntkio, name)
        assert value.__doc__, name


def test_no_framework_is_imported_by_importing_the_package() -> None:
    program = "import cntkio, sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "jax", "pyarrow", "pyspark", "ray", "scipy", "pandas"} & set(loaded)


@pytest.mark.parametrize("place", ["python", "crates", "tests"])
def test_every_section_that_code_cites_is_on_its_page(place: str) -> None:
    patterns = {"python": "cntkio/**/*.py", "crates": "*/src/**/*.rs", "tests": "**/*.py"}
    cited = set()
    for path in (ROOT / place).glob(patterns[place]):
        text = re.sub(r"\s+(?:///?|//!|#)?\s*", " ", path.read_text(encoding="utf-8"))
        cited |= set(re.findall(r"(docs/[\w/-]+\.md), \"([^\"]+)\"", text))
    assert cited
    for page, section in sorted(cited):
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert section in headings, f"{page} has no section {section!r}"


if __name__ == "__main__":
    print(*house.figures(), sep="\n")

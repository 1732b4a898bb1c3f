"""Every code block of the documents and every example of a docstring runs, and prints the output that it shows.

- ```` ```python ````: run; the blocks of a page share their names. With prompts (`>>>`) it is a doctest; without, a
  block ```` ```output ```` right after it must equal the printed output.
- ```` ```console ````: bash runs each line after `$ `; the lines below must be its output. Without such
  lines, the command must succeed. `make` runs in the repository.
- ```` ```sh ````: set-up of a machine, which is not run here; the Makefile must know every `make` verb in it.
- In both, each command begins with a known program, and no comment contains a command, so that nobody pastes text that
  lost its line ends.
- `...` stands for any text, in all of them.

A page is run up to the first block that needs a framework which is not installed, and then counts as skipped.

Everything runs in a folder that contains a copy of `examples/` and nothing else, as in a fresh clone. Each page with
code, and the docstrings of each framework's modules together, run in a process of their own, because frameworks do not
tolerate the forks of others.
"""

import builtins
import contextlib
import doctest
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, commands, house
from support.programs import run_together

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
DATA_LANGUAGES = {"", "text", "ctf", "ebnf", "toml", "rust"}
OPTIONAL_PACKAGES = {
    "torch",
    "torchdata",
    "jax",
    "pyarrow",
    "pandas",
    "polars",
    "duckdb",
    "datasets",
    "ray",
    "fsspec",
    "pyspark",
    "dask",
    "grain",
}
OPTIONAL_MODULES = ("arrow", "jax", "ray", "spark", "torch")
CLUSTERS = {"ray", "spark"}  # starting them takes many seconds: their pages belong to `make test-ray` and `test-spark`
IS_MISSING = 77  # exit status
DOCTEST_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# What a command of a page may begin with, after assignments of environment variables. CLONE is a folder.
PROGRAMS = {
    *("make", "cntkio", "python", ".venv/bin/python", "CLONE/.venv/bin/python", "crates/fuzz/run", "cargo"),
    *("cat", "cp", "docker", "echo", "gzip", "head", "printf", "rm", "sed", "seq", "systemd-run"),
}
_COMMENTED_COMMAND = re.compile(r"(?:^|\s)#.*\b(?:make|cntkio|python|pip|cargo)\s")

_FENCE = re.compile(r"^ *(`{3,}|~{3,}) *(\S*) *$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line of the page, from 1, that the text starts at."""

    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """Find the fenced blocks of a page; blocks of MyST directives (`{...}`) are not code."""
    lines = page.splitlines()
    place = 0
    while place < len(lines):
        opening = _FENCE.match(lines[place])
        place += 1
        if opening is None:
            continue
        start = place
        while place < len(lines) and lines[place].strip() != opening[1]:
            place += 1
        assert place < len(lines), f"line {start}: the block is not closed"
        if not opening[2].startswith("{"):
            yield Block(opening[2], "\n".join(lines[start:place]) + "\n", start + 1)
        place += 1


def agrees(shown: str, printed: str) -> bool:
    """Return whether a printed text matches the text of the page, where `...` stands for any text."""
    pattern = ".*?".join(re.escape(part) for part in _trimmed(shown).split("..."))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def console_steps(text: str) -> Iterator[tuple[str, str]]:
    """Cut a console block into commands and what is shown below each."""
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = step.replace("\\\n", "\\\0").partition("\n")
        yield command.replace("\\\0", "\\\n"), shown.replace("\\\0", "\\\n")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder that holds a copy of the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.index"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_page(text: str, name: str) -> set[str]:
    """Run all blocks of a page, in order, in the present folder; name the framework that was missing, if any."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks(text):
        place = f"{name}, line {block.line}"
        if block.language == "python" and block.text.lstrip().startswith(">>>"):
            run_doctest(block, namespace, name)
            printed = None
        elif block.language == "python":
            try:
                printed = run_python(block, namespace, name)
            except ModuleNotFoundError as error:
                return {optional_package(error)}
        elif block.language == "output":
            assert printed is not None, f"{place}: no python block without prompts stands before this output"
            assert agrees(block.text, printed), f"{place}: the page shows\n{block.text}\nand it printed\n{printed}"
            printed = None
        elif block.language == "console":
            for command, shown in console_steps(block.text):
                run_command(command, shown, place)
        elif block.language == "sh":
            assert_make_verbs_exist(block.text, place)
        else:
            assert block.language in DATA_LANGUAGES, f"{place}: a block of an unknown language, '{block.language}'"
    return set()


def optional_package(error: ModuleNotFoundError) -> str:
    """Return the missing framework; raise the error again if another module is missing."""
    package = (error.name or "").partition(".")[0]
    if package not in OPTIONAL_PACKAGES:
        raise error
    return package


def run_python(block: Block, namespace: dict[str, Any], name: str) -> str:
    """Run a block without prompts and return what it printed; its lines keep their numbers in a traceback."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), namespace)
    return printed.getvalue()


def run_doctest(block: Block, namespace: dict[str, Any], name: str) -> None:
    """Run a block with prompts as a doctest that shares the names of the page."""
    examples = doctest.DocTestParser().get_doctest(block.text, namespace, name, name, block.line - 1)
    run_examples(examples)
    namespace.update(examples.globs)


def run_examples(examples: doctest.DocTest) -> None:
    """Run the examples and fail with doctest's own report."""
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS, verbose=False)
    result = runner.run(examples, out=report.write, clear_globs=False)
    assert result.failed == 0, report.getvalue()


def run_command(command: str, shown: str, place: str) -> None:
    """Run a command of a console block; compare its output, or, where none is shown, its exit status."""
    status, printed = run_in_bash(command)
    if shown.strip():
        assert agrees(shown, printed), f"{place}: $ {command}\nshows\n{shown}\nand printed\n{printed}"
    else:
        assert status == 0, f"{place}: $ {command}\n{printed}"


def run_in_bash(command: str) -> tuple[int, str]:
    # Without MAKELEVEL and MAKEFLAGS, which `make test` sets, `make` prints what it prints in a terminal.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    finished = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=ROOT if command.startswith("make ") else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return finished.returncode, finished.stdout


def assert_make_verbs_exist(text: str, place: str) -> None:
    """Check that the Makefile has the `make` verbs of a set-up block."""
    rules = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "packaging/release.mk"))
    targets = set(re.findall(r"^([\w-]+):", rules, re.MULTILINE))
    without_variables = re.sub(r"\b[A-Z]+=(\"[^\"]*\"|\S*)", "", text)
    unknown = {
        verb for verbs in re.findall(r"^make +([^#\n]+)", without_variables, re.MULTILINE) for verb in verbs.split()
    } - targets
    assert not unknown, f"{place}: the Makefile does not know {', '.join(sorted(unknown))}"


def assert_commands_stand_alone(block: Block) -> None:
    """Check that each command of a shell block begins with a known program, and that no comment contains a command."""
    if block.language == "console":
        commands = [command for command, _ in console_steps(block.text)]
    else:
        commands = block.text.replace("\\\n", " ").splitlines()
    for command in commands:
        program = re.sub(r"^(?:[A-Z_]+=\S+ +)*", "", command).partition(" ")[0]
        assert program in PROGRAMS, f"line {block.line}: '{command}' does not begin with a known program"
        assert not _COMMENTED_COMMAND.search(command), f"line {block.line}: the comment of '{command}' has a command"


def module_names() -> list[str]:
    """List the package and its modules that need no framework."""
    names = (name for name in house.modules() if name != "__init__")
    return ["cntkio", *(f"cntkio.{name}" for name in names if name.partition(".")[0] not in OPTIONAL_MODULES)]


def modules_of(framework: str) -> list[str]:
    """List the modules of a framework, without importing it."""
    return [f"cntkio.{name}" for name in house.modules() if name.partition(".")[0] == framework]


def unless_cluster(name: str, value: object) -> Any:
    """Mark what starts a cluster as thorough."""
    return pytest.param(value, id=name, marks=[pytest.mark.thorough] if Path(name).stem in CLUSTERS else [])


def docstring_examples(module: str) -> list[doctest.DocTest]:
    """Collect the examples of all docstrings of a module."""
    imported = importlib.import_module(module)
    return [found for found in doctest.DocTestFinder().find(imported, module) if found.examples]


def in_a_process(kind: str, what: str, folder: Path) -> None:
    """Run this file as a program, for a page or for a module's docstrings."""
    (ran,) = run_together(__file__, [kind, what, commands.environment()["PATH"]], folder=folder)
    if ran.status == IS_MISSING:
        pytest.skip(ran.printed.strip())
    assert ran.status == 0, f"{ran.printed}{ran.complaints}"


def as_program(kind: str, what: str, path: str) -> int:
    """Run a page or docstrings for `in_a_process`, with a search path; print the frameworks that are missing."""
    os.environ["PATH"] = path
    with (ROOT / "pyproject.toml").open("rb") as file:
        filters = tomllib.load(file)["tool"]["pytest"]["ini_options"]["filterwarnings"]
    for text in filters:  # as pytest has them: action:message:category
        action, message, category = [*text.split(":"), "", ""][:3]
        warnings.filterwarnings(action, message, getattr(builtins, category or "Warning"))
    if kind == "page":
        missing = run_page((ROOT / what).read_text(encoding="utf-8"), what)
    else:
        missing = set().union(*map(run_docstrings, modules_of(what)))
    if missing:
        print(f"{', '.join(sorted(missing))} is not installed")
    return IS_MISSING if missing else 0


def run_docstrings(module: str) -> set[str]:
    """Run the examples of all docstrings of a module; name the framework that was missing."""
    try:
        found = docstring_examples(module)
    except ModuleNotFoundError as error:
        return {optional_package(error)}
    for examples in found:
        run_examples(examples)
    return set()


@pytest.mark.parametrize("page", [unless_cluster(page.relative_to(ROOT).as_posix(), page) for page in PAGES])
def test_every_code_block_of_a_page_runs_and_shows_what_it_prints(page: Path, clone: Path) -> None:
    name, text = page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
    if {block.language for block in blocks(text)} & {"python", "console"}:
        in_a_process("page", name, clone)
    else:
        run_page(text, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_shell_line_of_a_page_is_one_command(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language in ("sh", "console"):
            assert_commands_stand_alone(block)


@pytest.mark.parametrize(
    "text",
    [
        "make demo     # trains a classifier on them make test     # sets up and builds,\n",
        "and runs all tests\n",
        "check-targets   # the Rust code compiles for ARM, macOS and Windows\n",
        "# build these pages as a site, in site/\n",
        "PYTHONPATH=tests the tests\n",
        "\nmake demo\n",
    ],
)
def test_wrapped_shell_lines_are_found(text: str) -> None:
    with pytest.raises(AssertionError):
        assert_commands_stand_alone(Block("sh", text, 1))


def test_the_readme_shows_two_commands_with_their_times() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [block.text for block in blocks(page) if block.language == "sh"]
    assert len(shown) == 1
    time = r"\b\d+ (seconds|minutes?)\b"
    assert re.fullmatch(rf"make demo +#.* {time}.*\nmake test +#.* {time}.*\n", shown[0])


@pytest.mark.parametrize("module", module_names())
def test_every_example_of_a_docstring_runs(module: str, clone: Path) -> None:
    run_docstrings(module)


@pytest.mark.parametrize("framework", [unless_cluster(framework, framework) for framework in OPTIONAL_MODULES])
def test_every_example_of_an_adapter_runs(framework: str, clone: Path) -> None:
    in_a_process("docstrings", framework, clone)


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", "docs/cli.md"])
def test_the_pages_for_newcomers_show_code_with_its_output(name: str) -> None:
    languages = {block.language for block in blocks((ROOT / name).read_text(encoding="utf-8"))}
    assert languages & {"output", "console"}


@pytest.mark.parametrize(
    "page",
    [
        "```python\nraise ValueError\n```\n",
        "```python\nprint(1)\n```\n```output\n2\n```\n",
        "```output\n2\n```\n",
        "```python\n>>> 1 + 1\n3\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ printf 'one\\ntwo\\n'\none\n```\n",
        "```sh\nmake no-such-verb\n```\n",
        "```cobol\nSTOP RUN\n```\n",
        "```python\nprint(1)\n",
    ],
)
def test_a_wrong_page_fails(page: str, clone: Path) -> None:
    with pytest.raises((AssertionError, ValueError)):
        run_page(page, "page")


@pytest.mark.parametrize(
    "page",
    [
        "```python\nx = 1\n```\nwords\n```python\n>>> x + 1\n2\n```\n```python\nprint(x)\n```\n```output\n1\n```\n",
        "```console\n$ printf 'one\\ntwo\\nthree\\n'\none\n...\nthree\n$ test -d examples\n```\n",
        "```console\n$ echo one \\\n  two\none two\n```\n",
        "```{note}\nno code\n```\n",
        "```text\nno code\n```\n",
    ],
)
def test_a_correct_page_passes(page: str, clone: Path) -> None:
    run_page(page, "page")


if __name__ == "__main__":
    sys.exit(as_program(*sys.argv[1:]))

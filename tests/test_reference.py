"""The pages of the reference have an entry for every public name, with parameters and an example."""

import importlib
import inspect
import re
from types import ModuleType
from typing import Any

import pytest
from support import ROOT

PAGES = {path.stem: path for path in (ROOT / "docs" / "reference").glob("*.md") if path.stem != "index"}
MODULES = {"cntkio": "cntkio"} | {name: f"cntkio.{name}" for name in PAGES if name != "cntkio"}
# They raise an error that names a replacement.
LEFT_OUT = {"ImageDeserializer", "Base64ImageDeserializer", "LatticeDeserializer", "color", "crop", "mean", "scale"}


def module(page: str) -> ModuleType:
    """Import the module of a page; the test is skipped if the module's framework is not installed."""
    name = MODULES[page]
    if page in ("torch", "jax", "arrow", "ray", "spark"):
        pytest.importorskip({"arrow": "pyarrow", "spark": "pyspark"}.get(page, page), reason=f"{page} is not installed")
    return importlib.import_module(name)


def public(page: str) -> dict[str, Any]:
    """The public names of a module that are not modules themselves."""
    there = module(page)
    found = {name: getattr(there, name) for name in there.__all__ if not name.startswith("__")}
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


def test_each_public_module_has_a_page() -> None:
    assert set(PAGES) == {"cntkio", "convert", "transforms", "torch", "jax", "arrow", "ray", "spark"}
    index = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    assert all(f"\n{page}\n" in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_lists_every_public_name_once(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    listed = re.findall(rf"^\.\. auto\w+:: {re.escape(MODULES[page])}\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(public(page))


@pytest.mark.parametrize("page", PAGES)
def test_each_section_of_a_page_says_what_to_see_also(page: str) -> None:
    sections = re.split(r"^## ", PAGES[page].read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for section in sections:
        pages = re.findall(r"\]\((\.\./[\w/-]+\.md)\)", section.split("See also: ")[1].split("\n")[0])
        assert pages and all((PAGES[page].parent / other).exists() for other in pages)


@pytest.mark.parametrize("page", PAGES)
def test_each_public_function_has_parameters_and_an_example(page: str) -> None:
    lacking = []
    for name, value in public(page).items():
        text = inspect.getdoc(value) or ""
        if inspect.isroutine(value) and name not in LEFT_OUT:
            has_all = ("Args:" in text or "Arguments and" in text) and "Example:" in text
        else:
            has_all = bool(text) or not inspect.isclass(value)
        if not has_all:
            lacking.append(name)
    assert not lacking


def test_pages_show_only_members_that_have_a_text() -> None:
    shown = [block for page in PAGES.values() for block in page.read_text(encoding="utf-8").split(".. auto")[1:]]
    assert [block.split()[1] for block in shown if ":undoc-members:" in block] == ["cntkio.TraceLevel"]

"""Configuration of Sphinx, which builds these pages: `make docs` runs `sphinx-build -W docs site`.

It adds to two pages what the code says: `check-rules` and `cli-reference`.

`CNTKIO_DOCS_VERSIONS` lists the versions that a site offers: names and addresses, as JSON, such as
`{"0.2": "https://…/0.2/", "main": "https://…/main/"}`. Without it, the site has no switch.
"""

import importlib
import inspect
import json
import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from types import ModuleType
from typing import Any

from cntkio.survey.rules import RULES
from sphinx.util.inspect import signature as signature_of
from sphinx.util.inspect import stringify_signature

sys.path.insert(0, str(Path(__file__).parent))
from arguments_page import lines

project = "cntkio"
author = "the authors of cntkio"
copyright = f"2026, {author}"
release = version = installed_version("cntkio")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"cntkio {release}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["width.css"]
templates_path = ["templates"]
html_context = {"versions": json.loads(os.environ.get("CNTKIO_DOCS_VERSIONS", "{}"))}
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html",
        "versions.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip

napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes stay part of their class's text; as entries of their own they would meet the properties of the same name.
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"npt.DTypeLike": "numpy.typing.DTypeLike"}
# The class is the entry above; with its name, entries break in narrow columns.
toc_object_entries_show_parents = "hide"
# Longer signatures have a line for each parameter.
maximum_signature_line_length = 88
# These frameworks need not be installed for their modules' pages; pyarrow is, since its types are in signatures.
autodoc_mock_imports = ["torch", "jax", "ray", "pyspark"]
# Only dashes, which Sphinx itself writes as hyphens: quotes are values.
smartquotes_action = "D"
# Blocks without a language are drawings and algorithms, not Python.
highlight_language = "text"
# Docstrings are written in Markdown's habit: one backtick is code.
default_role = "code"

_SOURCES = f"https://github.com/cntkio/cntkio/blob/{os.environ.get('CNTKIO_DOCS_REVISION', 'main')}/"
_ROOT = Path(__file__).resolve().parent.parent


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return the address of an object's source: the file, and its lines."""
    if domain != "py" or not info["module"]:
        return None
    found: object = importlib.import_module(info["module"])
    for name in info["fullname"].split("."):
        found = getattr(found, name, None)
    if isinstance(found, property):
        found = found.fget
    try:
        lines, first = inspect.getsourcelines(inspect.unwrap(found))  # type: ignore[arg-type]
        module = inspect.getmodule(found)
    except (OSError, TypeError):
        return None  # constants and aliases
    if not isinstance(module, ModuleType) or module.__file__ is None:
        return None
    path = Path(module.__file__).resolve()
    if not path.is_relative_to(_ROOT):
        return None
    return f"{_SOURCES}{path.relative_to(_ROOT).as_posix()}#L{first}-L{first + len(lines) - 1}"


# What Python prints for annotations and defaults of data classes, and what the code says.
_UNREADABLE = {
    r"<class '([\w.]+)'>": r"\1",
    r"TypeAliasForwardRef\('([\w.]+)'\)": r"\1",
    r"<factory>": "...",
    r"~(?:\w+\.)*": "",
    r"type\[Any\] \| (?:numpy\.)?dtype\[Any\] \| .*?_DTypeDict \| str": "numpy.typing.DTypeLike",
    r" \| _\w+": "",
}


def _readable(text: str) -> str:
    for pattern, replacement in _UNREADABLE.items():
        text = re.sub(pattern, replacement, text)
    return text


def _readable_signature(_app: object, what: str, _name: str, found: Any, *more: Any) -> tuple[str, str] | None:
    """Return a signature that Sphinx can parse, with the names that the code uses for its types.

    A class that derives from a framework's class gets the signature of its own `__init__`: the framework is a mock.
    """
    _options, signature, returned = more
    if what == "class" and signature == "(*args: Any, **kwargs: Any)":
        signature, returned = (
            stringify_signature(signature_of(found.__init__, bound_method=True), unqualified_typehints=True),
            "",
        )
    if signature is None:
        return None
    return _readable(signature), returned


def _skipped(_app: object, _what: str, name: str, found: Any, skip: bool, _options: object) -> bool | None:
    """Leave out fields that the class's own text already describes: of named tuples, and defaults of data classes."""
    is_field = type(found).__name__ == "_tuplegetter" or (name == "dtype" and isinstance(found, type))
    return True if is_field else None


def _pages_as_links(_app: object, what: str, _name: str, _found: object, _options: object, lines: list[str]) -> None:
    """Turn the name of a page in a docstring, such as docs/timeline.md, into a link."""
    if what == "data":
        lines.clear()  # the page says what it is; these lines are the docstring of the value's type
    lines[:] = [_readable(re.sub(r"\bdocs/([\w/-]+)\.md", r":doc:`/\1`", line)) for line in lines]


def _with_generated_text(_app: object, page: str, text: list[str]) -> None:
    """Add to a page what the code says: the arguments of all verbs, and the meaning of each rule of `cntkio check`."""
    if page == "cli-reference":
        text[0] += "\n".join(line if line.startswith(("$", "cntkio")) else _options_as_code(line) for line in lines())
    if page == "check-rules":
        text[0] = re.sub(
            r"^### (\S+)$", lambda heading: f"{heading[0]}\n\n{_rule(heading[1])}", text[0], flags=re.MULTILINE
        )


def _rule(code: str) -> str:
    rule = RULES[code]
    return _options_as_code(f"{rule.meaning} ({rule.severity.capitalize()}.) **Help**: {rule.help}.\n")


def _options_as_code(text: str) -> str:
    # In other text, Sphinx makes a dash of two hyphens.
    return re.sub(r"(?<!`)--[a-z][\w-]*", r"`\g<0>`", text)


def setup(app: Any) -> None:
    """Connect the events of Sphinx."""
    app.connect("source-read", _with_generated_text)
    app.connect("autodoc-process-signature", _readable_signature)
    app.connect("autodoc-skip-member", _skipped)
    app.connect("autodoc-process-docstring", _pages_as_links)

"""Configuration of Sphinx, which builds these pages: `make docs` runs `sphinx-build -W docs site`.

`CNTKIO_DOCS_VERSIONS` lists the versions that a site offers: names and addresses, as JSON, such as
`{"0.2": "https://…/0.2/", "main": "https://…/main/"}`. Without it, the site has no switch.
"""

import importlib
import inspect
import json
import os
import re
from importlib.metadata import version as installed_version
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.util.inspect import signature as signature_of
from sphinx.util.inspect import stringify_signature

project = "cntkio"
author = "the authors of cntkio"
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
# Longer signatures have a line for each parameter.
maximum_signature_line_length = 88
# Frameworks need not be installed for their modules' pages.
autodoc_mock_imports = ["torch", "jax", "pyarrow", "ray", "pyspark"]
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


def _signature_behind_mock(_app: object, what: str, _name: str, found: Any, *more: Any) -> tuple[str, str] | None:
    """Return the signature of a class that derives from a framework's class, which is a mock here."""
    _options, signature, _returned = more
    if what != "class" or signature != "(*args: Any, **kwargs: Any)":
        return None
    return stringify_signature(signature_of(found.__init__, bound_method=True), unqualified_typehints=True), ""


def _pages_as_links(_app: object, _what: str, _name: str, _found: object, _options: object, lines: list[str]) -> None:
    """Turn the name of a page in a docstring, such as docs/timeline.md, into a link."""
    lines[:] = [re.sub(r"\bdocs/([\w/-]+)\.md", r":doc:`/\1`", line) for line in lines]


def setup(app: Any) -> None:
    """Connect the events of Sphinx."""
    app.connect("autodoc-process-signature", _signature_behind_mock)
    app.connect("autodoc-process-docstring", _pages_as_links)

"""Configuration of Sphinx, which builds these pages: `make docs` runs `sphinx-build -W docs site`."""

from importlib.metadata import version as installed_version

project = "cntkio"
author = "the authors of cntkio"
release = version = installed_version("cntkio")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"cntkio {release}"
html_copy_source = False

napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes stay part of their class's text; as entries of their own they would meet the properties of the same name.
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Frameworks need not be installed for their modules' pages.
autodoc_mock_imports = ["torch", "jax", "pyarrow", "ray"]
# Docstrings are written in Markdown's habit: one backtick is code.
default_role = "code"

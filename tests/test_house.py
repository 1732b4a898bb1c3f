"""The house's own rules: imports go one way, and the public names are one list."""

import ast
import re
from pathlib import Path

import cntkio
import pytest
from support import ROOT

PACKAGE = ROOT / "python" / "cntkio"


def drawn() -> dict[str, set[str]]:
    """The table of the architecture page: module -> modules that it may import."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]+ \| ([^|]*)\|$", text, re.MULTILINE)
    return {module: set(re.findall(r"`([\w.]+)`", imports)) for module, imports in rows}


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module in ("cntkio", "cntkio.formats", "cntkio.config"):  # from cntkio import _core
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                known = {f"cntkio.{name}" for name in [*modules(), "_core"]}
                names |= {name if name in known else node.module for name in inside}
            else:
                names.add(node.module or "")
    return {name.removeprefix("cntkio").removeprefix(".") for name in names if name.split(".")[0] == "cntkio"}


@pytest.mark.parametrize("module", sorted(set(modules()) - {""}))
def test_a_module_imports_only_what_the_architecture_page_draws(module: str) -> None:
    assert module in drawn(), f"{module} is not on the architecture page"
    assert imports_of(modules()[module]) <= drawn()[module]


def test_the_architecture_page_draws_no_module_that_is_not_there() -> None:
    assert set(drawn()) <= set(modules())
    assert set().union(*drawn().values()) <= set(modules()) | {"_core", ""}


def test_imports_go_one_way() -> None:
    edges = {module: imports - {""} for module, imports in drawn().items()}
    while edges:
        leaves = {module for module, imports in edges.items() if not imports & set(edges)}
        assert leaves, f"a circle among {sorted(edges)}"
        edges = {module: imports for module, imports in edges.items() if module not in leaves}


def test_every_public_name_is_there_documented_and_listed_once() -> None:
    assert len(set(cntkio.__all__)) == len(cntkio.__all__)
    for name in cntkio.__all__:
        value = getattr(cntkio, name)
        assert value.__doc__, name


def test_no_framework_is_imported_by_importing_the_package() -> None:
    import subprocess
    import sys

    program = "import cntkio, sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "jax", "pyarrow", "ray", "scipy", "pandas"} & set(loaded)


def test_every_section_that_code_cites_is_on_its_page() -> None:
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "crates").glob("*/src/**/*.rs"), *(ROOT / "tests").rglob("*.py")]
    cited = set()
    for path in sources:
        text = re.sub(r"\s+(?:///?|//!|#)?\s*", " ", path.read_text(encoding="utf-8"))
        cited |= set(re.findall(r"(docs/[\w/-]+\.md), \"([^\"]+)\"", text))
    assert cited
    for page, section in sorted(cited):
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert section in headings, f"{page} has no section {section!r}"

"""The project as a package index shows it: links, versions and extras."""

import re
import runpy
import tomllib
from importlib.metadata import version

import cntkio
import pytest
from support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]
PAGES = CARGO["repository"] + "/blob/main/"


def test_links_of_the_readme_work_on_the_page_of_a_package_index() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 10
    assert not [link for link in links if not link.startswith("https://")]
    files = [link.removeprefix(PAGES).partition("#")[0] for link in links if link.startswith(PAGES)]
    assert not [file for file in files if not (ROOT / file).exists()]


@pytest.mark.parametrize("name", ["balance", "speed"])
def test_a_picture_shows_the_figures_of_the_pages(name: str) -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / f"{name}.py"))["picture"]()
    assert drawn == (ROOT / "docs" / "static" / f"{name}.svg").read_text(encoding="utf-8")


def test_the_project_page_of_each_kind_is_in_the_repository() -> None:
    assert PROJECT["urls"].keys() >= {"Homepage", "Documentation", "Repository", "Issues", "Changelog"}
    assert all(url.startswith(CARGO["repository"]) for url in PROJECT["urls"].values())


def test_the_version_of_the_package_is_the_version_of_its_core() -> None:
    assert cntkio.__version__ == version("cntkio") == CARGO["version"]


def test_the_pages_list_the_extras_of_the_project() -> None:
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\| `'\.\[(\w+)\]'` \|", page)) == PROJECT["optional-dependencies"].keys()
    every = ",".join(name for name in PROJECT["optional-dependencies"] if name not in ("all", "ray", "spark"))
    assert PROJECT["optional-dependencies"]["all"] == [f"cntkio[{every}]"]


def test_the_pages_state_the_rust_version_of_the_crates() -> None:
    for page in ("README.md", "docs/installation.md"):
        assert f"Rust {CARGO['rust-version']} or newer" in (ROOT / page).read_text(encoding="utf-8")

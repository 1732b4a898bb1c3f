"""The structure of the code, read from its text: rooms, imports, private names, circles and sizes.

This module does not know the required structure; `tests/test_house.py` does.
"""

import ast
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from cntkio.formats.detect import KINDS

from support import ROOT

PACKAGE = ROOT / "python" / "cntkio"
CRATES = ROOT / "crates"
TESTS = ROOT / "tests"
STUB = PACKAGE / "_core.pyi"
NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}


class Import(NamedTuple):
    """An import of a module of the package: `module` imports `imported`, in a function if it is late."""

    module: str
    imported: str
    names: tuple[str, ...]
    is_late: bool


class Size(NamedTuple):
    """Number of lines of a class or a function."""

    lines: int
    name: str
    module: str


@cache
def modules() -> dict[str, Path]:
    """Return the modules of the package by name, without `cntkio.` in front; the package itself is `__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _short(name: str) -> str:
    return name.removeprefix("cntkio").removeprefix(".") or "__init__"


def _late_nodes(module: ast.Module) -> set[ast.AST]:
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {inner for function in functions for inner in ast.walk(function)}


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Return the imports of modules of the package. A name that is a module counts as that module."""
    return tuple(_imports_of(module))


def _imports_of(module: str) -> Iterator[Import]:
    parsed = tree(modules()[module])
    late = _late_nodes(parsed)
    known = {*modules(), "_core"}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "cntkio":
                    yield Import(module, _short(alias.name), (), node in late)
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "cntkio"):
            assert node.level == 0, f"{module}: a relative import"
            source = _short(node.module or "")
            prefix = "" if source == "__init__" else f"{source}."
            inside = [alias.name for alias in node.names if prefix + alias.name in known]
            for name in inside:
                yield Import(module, prefix + name, (), node in late)
            names = tuple(alias.name for alias in node.names if alias.name not in inside)
            if names:
                yield Import(module, source, names, node in late)


def modules_imported_by_text(module: str) -> Iterator[int]:
    """Yield the lines on which a module of the package is imported by `import_module`."""
    for node in ast.walk(tree(modules()[module])):
        if isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__") and node.args:
            text = ast.unparse(node.args[0])
            if "cntkio" in text or "__name__" in text:
                yield node.lineno


def _name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")  # IPython calls names such as _repr_html_


def foreign_private_names(path: Path, private_modules: Iterable[str] = ("_core", "_start", "_threads")) -> set[str]:
    """Return the private names that a file uses and does not define, except for private modules."""
    parsed = tree(path)
    defined: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(parsed):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                defined.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(attr=name):
                used.add(name)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(str(name)), *_]):
                used.add(name)
            case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[_, ast.Constant(str(name)), *_]):
                defined.add(name)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(str(name)), *_]):
                used.add(name.rpartition(".")[2])  # monkeypatch
            case ast.ImportFrom():
                used |= {alias.name for alias in node.names}
    return {name for name in used - defined - NAMED_TUPLES - set(private_modules) - {"_exit"} if is_private(name)}


def libraries_of(path: Path) -> Iterator[str]:
    """Yield the libraries that a file imports, also with `importorskip`, and the adapters of this package."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(name)):
                names = [name]
            case ast.Call(func=ast.Attribute(attr="importorskip"), args=[ast.Constant(str(name)), *_]):
                names = [name]
            case _:
                names = []
        yield from (name.removeprefix("cntkio.").split(".")[0] for name in names)


def signatures(stub: Path) -> Iterator[tuple[str, int]]:
    """Yield the functions and methods of a stub, each with its number of parameters, without `self` and `cls`."""
    for node in ast.walk(tree(stub)):
        if isinstance(node, ast.FunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield node.name, sum(argument.arg not in ("self", "cls") for argument in every)


def tuples(stub: Path) -> Iterator[tuple[str, int]]:
    """Yield the types in a stub that are tuples of a fixed number of items, each with that number."""
    for node in ast.walk(tree(stub)):
        match node:
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=items)):
                if not any(isinstance(item, ast.Constant) and item.value is ... for item in items):
                    yield ast.unparse(node), len(items)


def circles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of nodes in which every node can be reached from every other node."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        waiting = list(edges[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += edges.get(node, ())
        reached[start] = seen
    found: list[set[str]] = []
    for start in sorted(edges):
        circle = {node for node in reached[start] if start in reached.get(node, ())}
        if circle and circle not in found:
            found.append(circle)
    return found


def import_edges() -> dict[str, set[str]]:
    """Return the modules that each module imports when it is loaded, except for itself and late imports."""
    return {
        module: {one.imported for one in imports_of(module) if not one.is_late} - {module, "_core"}
        for module in modules()
    }


def questions_of_type(module: str, asked_of: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield calls that test the type of an object: `hasattr`, `getattr` of a literal, `isinstance` of these modules."""
    parsed = tree(modules()[module])
    contracts = {name for one in imports_of(module) if one.imported.split(".")[0] in asked_of for name in one.names}
    for node in ast.walk(parsed):
        match node:
            case ast.Call(func=ast.Name(id="hasattr" | "getattr" as function), args=[_, ast.Constant(str(name)), *_]):
                yield function, name
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                for inner in ast.walk(kinds):
                    if _name_of(inner) in contracts:
                        yield "isinstance", _name_of(inner)


def sizes(kinds: tuple[type[ast.AST], ...]) -> list[Size]:
    """Return the classes or functions of the package with their lines that are not comments, the longest first."""
    found = []
    for module, path in modules().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree(path)):
            if isinstance(node, kinds):
                begin = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                size = sum(not is_comment(line) for line in lines[begin - 1 : node.end_lineno])
                found.append(Size(size, node.name, module))
    return sorted(found, reverse=True)


def classes() -> list[Size]:
    return sizes((ast.ClassDef,))


def functions() -> list[Size]:
    return sizes((ast.FunctionDef, ast.AsyncFunctionDef))


def protocols() -> Iterator[tuple[str, list[str]]]:
    """Yield each protocol, and the members that an implementer has to write, inherited members too."""
    nodes = (node for path in modules().values() for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))
    found = {node.name: node for node in nodes if "Protocol" in map(_name_of, node.bases)}
    for node in found.values():
        inherited = [found[name] for name in map(_name_of, node.bases) if name in found]
        yield node.name, [name for one in (node, *inherited) for name in _members(one)]


def _members(protocol: ast.ClassDef) -> Iterator[str]:
    for member in protocol.body:
        if isinstance(member, ast.FunctionDef) and all(isinstance(line, ast.Expr) for line in member.body):
            yield member.name
        elif isinstance(member, ast.AnnAssign):
            yield ast.unparse(member.target)


def public_names() -> dict[str, set[str]]:
    """Return the modules that define each public function or class."""
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(module)
    return found


def users() -> dict[str, set[str]]:
    """Return the modules that import each module, late or not, or name a function of it in the table of kinds."""
    found: dict[str, set[str]] = {module: set() for module in modules()}
    for module in modules():
        for one in imports_of(module):
            if one.imported != "_core" and one.imported != module:
                found[one.imported].add(module)
    for kind in KINDS.values():
        for text in filter(None, (kind.reader, kind.in_files, kind.writer)):
            found[text.partition(":")[0].removeprefix("cntkio.")].add("formats.detect")
    return found


class Entered(NamedTuple):
    """A function that ran: its module, its name in it, and the line where it begins."""

    module: str
    name: str
    line: int


@contextmanager
def walk() -> Iterator[set[Entered]]:
    """Collect the functions of the package that run during a block, on this thread and on all that it starts.

    Functions without a name count as a part of the function around them, and `__init__` modules do not count.
    """
    names = {str(path): module for module, path in modules().items() if path.name != "__init__.py"}
    found = set[Entered]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename in names and not code.co_name.startswith("<"):
            found.add(Entered(names[code.co_filename], code.co_qualname, code.co_firstlineno))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert found, "no module of this folder ran; a package in another folder comes first on the path"


# -- Rust --------------------------------------------------------------------------------------------------------------


class Crate(NamedTuple):
    """Return the files of a crate by the path of their module, such as `ctf::number`; the root is the empty text."""

    name: str
    files: Mapping[str, Path]


def crates() -> Iterator[Crate]:
    for folder in sorted(CRATES.iterdir()):
        sources = folder / "src"
        if not (sources / "lib.rs").exists():
            continue
        files = {}
        for path in sorted(sources.rglob("*.rs")):
            parts = path.relative_to(sources).with_suffix("").parts
            files["::".join(parts[:-1] if parts[-1] in ("mod", "lib") else parts)] = path
        yield Crate(folder.name, files)


def _used_paths(text: str) -> Iterator[str]:
    """Yield the paths in `use` lines and expressions, with groups in braces split."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.split(r"#\[cfg\(test\)\]", text)[0]
    for statement in re.findall(r"\buse\s+([^;]+);", text):
        yield from _apart(re.sub(r"\s+", "", re.sub(r"\bas\s+\w+", "", statement)))
    yield from re.findall(r"(?<!use )\b((?:crate|super)(?:::\w+)+)", text)


def _apart(path: str) -> Iterator[str]:
    head, brace, rest = path.partition("{")
    if not brace:
        yield path
        return
    depth, part = 0, ""
    for letter in rest[:-1] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if part:
                yield from _apart(head + part)
            part = ""
        else:
            part += letter


def _defining(crate: Crate, module: str, name: str) -> str:
    """Return the module that defines a name, if the given module only re-exports it."""
    text = crate.files[module].read_text(encoding="utf-8")
    for statement in re.findall(r"\bpub(?:\([^)]*\))?\s+use\s+([^;]+);", text):
        for path in _apart(re.sub(r"\s+", "", re.sub(r"\bas\s+\w+", "", statement))):
            if path.split("::")[-1] in (name, "*"):
                found = _resolved(crate, module, path)
                if found is not None and found != module:
                    return found
    return module


def _resolved(crate: Crate, module: str, path: str) -> str | None:
    """Return the module of a crate that defines a path used in a module, or None for other crates."""
    parts = path.split("::")
    place = module.split("::") if module else []
    if parts[0] == "crate":
        place, parts = [], parts[1:]
    elif parts[0] in ("super", "self"):
        while parts and parts[0] in ("super", "self"):
            place = place[:-1] if parts.pop(0) == "super" else place
    elif "::".join([*place, parts[0]]) not in crate.files:
        return None
    while parts and "::".join([*place, parts[0]]) in crate.files:
        place.append(parts.pop(0))
    found = "::".join(place)
    return _defining(crate, found, parts[0]) if parts and found != module else found


def rust_edges(crate: Crate) -> dict[str, set[str]]:
    """Return the modules of its crate that each module uses; a re-exported name counts for its definition."""
    edges: dict[str, set[str]] = {}
    for module, path in crate.files.items():
        text = re.sub(r"\bpub(?:\([^)]*\))?\s+use\s+[^;]+;", "", path.read_text(encoding="utf-8"))
        found = {_resolved(crate, module, used) for used in _used_paths(text)}
        edges[module] = {one for one in found if one is not None} - {module}
    return edges


# -- figures -----------------------------------------------------------------------------------------------------------


def names_of_functions(path: Path) -> list[str]:
    return [node.name for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]


def is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def num_lines(paths: Iterable[Path]) -> int:
    """Return the number of lines that are not comments, so that no reason is dropped to stay below a limit."""
    return sum(not is_comment(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines())


def figures() -> Iterator[str]:
    """Yield lines with the size of the code and of its largest pieces."""
    yield f"package: {len(modules())} modules, {num_lines(modules().values())} lines"
    rooms: dict[str, list[Path]] = {}
    for module, path in modules().items():
        rooms.setdefault(module.split(".")[0], []).append(path)
    for room, paths in sorted(rooms.items(), key=lambda item: -num_lines(item[1])):
        longest = max(paths, key=lambda path: num_lines([path]))
        files = f", {len(paths)} files, the longest {longest.name} {num_lines([longest])}" if len(paths) > 1 else ""
        yield f"  {room}: {num_lines(paths)} lines{files}"
    for what, found, bound in (("classes", classes(), 300), ("functions", functions(), 60)):
        long = [one for one in found if one.lines > bound]
        yield f"{what}: {len(found)}, of which {len(long)} have more than {bound} lines; the longest:"
        yield from (f"  {one.lines} {one.module}.{one.name}" for one in found[:8])
    for crate in crates():
        longest = max(crate.files.values(), key=lambda path: num_lines([path]))
        yield (
            f"crate {crate.name}: {len(crate.files)} files, {num_lines(crate.files.values())} lines; the longest "
            f"{longest.relative_to(CRATES)} {num_lines([longest])}"
        )
    tests = sorted(TESTS.rglob("*.py"))
    names = [name for path in tests for name in names_of_functions(path)]
    num_tests = sum(name.startswith("test_") for name in names)
    longest_name = max(names, key=len)
    yield f"tests: {len(tests)} files, {num_lines(tests)} lines, {num_tests} test functions; the longest name"
    yield f"  {longest_name}"

"""Notebooks as programs: their code cells run in order, and tests compare the outputs with the stored outputs.

python tests/support/notebooks.py examples/look.ipynb     run the cells, and store their outputs
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def cells(notebook: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    return content


def outputs_of(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a code cell as a notebook does: what it prints, and the value of its last expression as text and as HTML."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    value: Any = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        result = {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result)
    return outputs


def run(notebook: Path) -> dict[str, Any]:
    """Return the notebook with the outputs of all its code cells."""
    content = cells(notebook)
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        cell["execution_count"] = number
        cell["outputs"] = outputs_of("".join(cell["source"]), names, number)
    return content


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(json.dumps(run(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

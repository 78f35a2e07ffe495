"""Runs the code cells of a notebook in a fresh Python, without Jupyter, and stores what they show.

A cell's outputs are what it prints and its last expression, as HTML if it has such a form, as Jupyter shows them. Cells
with IPython's own syntax, such as `%pip`, are refused.

python ci/notebook.py docs/examples/first_run.ipynb           run it in an empty folder, print the outputs' sizes
python ci/notebook.py docs/examples/first_run.ipynb --write   also store the outputs, for readers of the file
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMIT_S = 900
# Runs in the fresh Python: reads the sources of the cells, writes a list of outputs for each.
PROGRAM = """
import ast, contextlib, io, json, sys
names, outputs = {"__name__": "__main__"}, []
for number, source in enumerate(json.loads(sys.stdin.read()), 1):
    tree, shown, printed = ast.parse(source, f"cell {number}"), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    found = []
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if shown is not None:
        data = {"text/plain": repr(shown)}
        if hasattr(shown, "_repr_html_"):
            data["text/html"] = shown._repr_html_()
        found.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    outputs.append(found)
json.dump(outputs, sys.stdout)
"""


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def executed(notebook: dict[str, Any], folder: Path) -> list[list[dict[str, Any]]]:
    """Run the code cells in a folder; return the outputs of each. Raises `SystemExit` with the error of a cell."""
    sources = json.dumps(["".join(cell["source"]) for cell in code_cells(notebook)])
    command = [sys.executable, "-c", PROGRAM]
    completed = subprocess.run(
        command, cwd=folder, input=sources, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if completed.returncode:
        raise SystemExit(completed.stderr)
    outputs: list[list[dict[str, Any]]] = json.loads(completed.stdout)
    return outputs


def main() -> None:
    """Run a notebook."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--write", action="store_true", help="store the outputs in the file")
    args = parser.parse_args()
    notebook = json.loads(args.path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        cell_outputs = executed(notebook, Path(folder))
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), cell_outputs, strict=True), 1):
        print(f"cell {number}: {len(json.dumps(outputs)) >> 10} KiB of output")
        cell |= {"outputs": outputs, "execution_count": number}
    if args.write:
        args.path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

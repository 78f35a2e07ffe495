"""Whether the module of a user's workload defines the function that the matrix names: read, never imported or run.

Only what can be decided is refused: a module that is found in the user's own folders and whose names are all written
in it. One that makes names as it runs (`from x import *`, `__getattr__`, `globals()`), cannot be parsed or is elsewhere
is left to the cell, which imports it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_matrix.records.settings import SCRIPT, is_script
from keras_matrix.records.text import near
from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix.reader import Cell, Matrix

MOST_BYTES = 4 << 20
_MAKE_NAMES = frozenset({"globals", "vars", "exec", "setattr", "__import__", "import_module"})


def check_workloads(matrix: Matrix, cells: Iterable[Cell], module_roots: Sequence[Path]) -> None:
    """Refuse workloads whose module lacks the function; `module_roots` are the user's folders. Raises `MatrixError`."""
    lines = {cell.settings.workload: cell.line for cell in cells if ":" in cell.settings.workload and not cell.task}
    problems = [
        f"{matrix.name}:{line}: workload: {problem}"
        for workload, line in lines.items()
        if (problem := missing_function(workload, module_roots))
    ]
    if problems:
        raise MatrixError(problems)


def missing_function(workload: str, module_roots: Sequence[Path]) -> str | None:
    """Return why `package.module:function`, or the path of a program, cannot be right; None if it may be."""
    if is_script(workload):
        script = workload.removeprefix(SCRIPT)
        if any((root / script).is_file() for root in module_roots):
            return None
        return f"must be a program in {' or '.join(map(str, dict.fromkeys(module_roots)))}, got {script!r}"
    module, _, function = workload.partition(":")
    path = _file_of(module.split("."), module_roots)
    names = None if path is None else _names_in(path)
    if names is None or function in names:
        return None
    return f"must name a function of {path}, got {workload!r}{near(function, names)}"


def _file_of(module_names: Sequence[str], module_roots: Sequence[Path]) -> Path | None:
    """Return the file of a module, in the first of the user's folders that has its top; None if that is not known."""
    if module_names[0] in sys.stdlib_module_names:
        return None
    for root in module_roots:
        top = root / module_names[0]
        if (top / "__init__.py").is_file() or top.with_suffix(".py").is_file():
            place = root.joinpath(*module_names)
            files = (place / "__init__.py", place.with_suffix(".py"))
            return next((path for path in files if path.is_file()), None)
        if top.is_dir():
            return None  # a package without __init__: further folders may belong to it
    return None


def _names_in(path: Path) -> frozenset[str] | None:
    """Return the names that a module defines at its top level; None if that cannot be read off."""
    try:
        with path.open("rb") as file:
            source = file.read(MOST_BYTES + 1)
        tree = ast.parse(source) if len(source) <= MOST_BYTES else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if tree is None or any(_makes_names(node) for node in ast.walk(tree)):
        return None
    return frozenset(_defined(tree))


def _makes_names(node: ast.AST) -> bool:
    """Return whether a module with this node may have names that are not written in it."""
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.FunctionDef):
        return node.name == "__getattr__"
    return isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in _MAKE_NAMES)


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module assigns, imports and defines, also within its conditions and loops."""
    waiting_nodes: list[ast.AST] = [tree]
    while waiting_nodes:
        node = waiting_nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        waiting_nodes.extend(ast.iter_child_nodes(node))

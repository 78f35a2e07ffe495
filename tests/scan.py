"""The modules of the product, and what tests need of their syntax trees: facts from one parse of each.

To parse all and to visit every node takes 4 s, and the trees 200 MB: one process of a run does it for all tests.
"""

from __future__ import annotations

import ast
import itertools
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests import shared

ROOT = Path(__file__).parents[1]
ROOMS = ("records", "models", "runner", "analysis", "uploader", "dashboards")
Function = ast.FunctionDef | ast.AsyncFunctionDef

# A function that is imported when it is needed, as `pkgutil.resolve_name` takes it.
LAZY = re.compile(r"keras_matrix(\.\w+)+:\w+")
# What reads the wall clock, which may be set at any moment: functions, by the type or module that has them.
WALL_CLOCK = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "clock_gettime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
CLOCK_READS = frozenset().union(*WALL_CLOCK.values())
# Calls that open a file, by the name of the function or method; `load` only of these modules, which read a file.
OPENING = frozenset({
    "open", "fdopen", "read_text", "read_bytes", "copy2", "copyfile", "copyfileobj", "copytree", "mmap", "memmap",
    "read_parquet", "ParquetFile", "open_code", "FileIO", "loadtxt", "genfromtxt", "fromfile",
})  # fmt: skip
LOADING = frozenset({"json", "pickle", "np", "numpy", "tomllib", "yaml", "marshal"})
NOTED = {
    ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom, ast.Constant,
    ast.JoinedStr, ast.Attribute, ast.Call,
}  # fmt: skip
UNIT = re.compile(r"^[ \u00a0]?[KMGT]iB\b")
PERCENT = re.compile(r"^[ \u00a0]?%(?!\w)")
NOT_CSS = re.compile(r"^[ \u00a0]%|^%[ ,;)]")


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """A function: its size and parameters, whether it takes parsed flags, and what it then returns."""

    name: str
    line: int
    lines: int
    parameters: int
    takes_flags: bool
    returns: str | None


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement; `import a, b` has no module."""

    module: str | None
    names: tuple[str, ...]

    def spelled(self) -> list[str]:
        """Return what the statement may import: its module, and each name as if it were one inside."""
        if self.module is None:
            return list(self.names)
        return [self.module, *(f"{self.module}.{name}" for name in self.names)]


@dataclass(slots=True)
class Facts:
    """What the scans need of a module."""

    imports: list[Import] = field(default_factory=list)
    lazy: list[str] = field(default_factory=list)
    functions: list[FunctionFacts] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)  # lines of strings that document nothing
    clock_reads: list[str] = field(default_factory=list)
    prints: list[int] = field(default_factory=list)  # lines of calls of `print`
    opened: list[str] = field(default_factory=list)  # calls that open a file
    texts: list[str] = field(default_factory=list)  # in which NUL replaces what an f-string inserts
    f_strings: int = 0
    notations: list[tuple[int, str]] = field(default_factory=list)  # figures that an f-string formats: line, what
    words: set[str] = field(default_factory=set)  # with a dot, such as names of modules
    docstrings: list[str] = field(default_factory=list)  # the module's first

    def note(self, node: ast.AST) -> None:
        """Take in a node of the module's tree."""
        match node:
            case ast.Import(names=names):
                self.imports.append(Import(None, tuple(alias.name for alias in names)))
            case ast.ImportFrom(module=module, names=names):
                if module:
                    self.imports.append(Import(module, tuple(alias.name for alias in names)))
                if module == "time":
                    self.clock_reads += [f"time.{alias.name}" for alias in names if alias.name in WALL_CLOCK["time"]]
            case ast.Constant(value=str(text)):
                self.texts.append(text)
                self.words.update(word for word in re.findall(r"[\w.]+", text) if "." in word)
                if LAZY.fullmatch(text):
                    self.lazy.append(text.partition(":")[0])
            case ast.JoinedStr(values=values):
                self.f_strings += 1
                self.texts.append("".join(str(part.value) if is_text(part) else "\0" for part in values))
                self.notations += [*formatted(node), *scaled(node)]
            case ast.Attribute(attr=name) if name in CLOCK_READS:
                holder = ast.unparse(node.value).rpartition(".")[2]
                self.clock_reads += [f"{holder}.{name}"] * (name in WALL_CLOCK.get(holder, set()))
            case ast.Call(func=function):
                self.opened += [ast.unparse(node)] * opens(function)
                self.prints += [node.lineno] * (isinstance(function, ast.Name) and function.id == "print")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions.append(facts_of_function(node))
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            self.docstrings.append(ast.get_docstring(node) or "")


@cache
def modules() -> Mapping[str, str]:
    """Return the text of each module of the product by its path from the root."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def facts(text: str) -> Facts:
    """Return the facts of a module's text."""
    return _product().get(text) or _read(text)


@cache
def _product() -> Mapping[str, Facts]:
    """Return the facts of the product's modules by their texts."""
    with shared.locked("facts") as folder:
        file = folder / "facts.pickle"
        if not file.exists():
            file.write_bytes(pickle.dumps({text: _read(text) for text in modules().values()}))
        return pickle.loads(file.read_bytes())


def _read(text: str) -> Facts:
    read = Facts()
    for node in _nodes(ast.parse(text)):
        if type(node) in NOTED:
            read.note(node)
        read.orphans += orphans_in(getattr(node, "body", None))
    return read


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes in the order of `ast.walk`, in two thirds of its time."""
    nodes = [tree]
    for node in nodes:  # which grows meanwhile
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def is_text(node: ast.AST | None) -> bool:
    """Return whether a node is a string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def orphans_in(body: object) -> Iterator[int]:
    """Yield the lines of strings that document nothing: neither the start of a body nor the assignment before them."""
    for before, statement in itertools.pairwise(body) if isinstance(body, list) else ():
        documents = isinstance(before, (ast.Assign, ast.AnnAssign))
        if isinstance(statement, ast.Expr) and is_text(statement.value) and not documents:
            yield statement.lineno


def opens(function: ast.expr) -> bool:
    """Return whether a call of a function opens a file."""
    if isinstance(function, ast.Attribute):
        return function.attr in OPENING or (function.attr == "load" and ast.unparse(function.value) in LOADING)
    return getattr(function, "id", "") in OPENING


def facts_of_function(function: Function) -> FunctionFacts:
    """Return the facts of a function; what it returns only if it takes parsed flags."""
    takes_flags = takes_namespace(function)
    returns = ast.unparse(function.returns) if takes_flags and function.returns else None
    sizes = lines_of(function), parameters_of(function)
    return FunctionFacts(function.name, function.lineno, *sizes, takes_flags, returns)


def lines_of(function: Function) -> int:
    """Return the lines of a function without its docstring."""
    first, end = function.body[0], function.end_lineno or 0
    is_docstring = isinstance(first, ast.Expr) and ast.get_docstring(function) is not None
    documented = (first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0
    return end - function.lineno + 1 - documented


def parameters_of(function: Function) -> int:
    """Return how many parameters a caller may give."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(parameter.arg not in ("self", "cls") for parameter in parameters)


def takes_namespace(function: Function) -> bool:
    """Return whether a function takes an `argparse.Namespace`."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = (parameter.annotation for parameter in named if parameter and parameter.annotation)
    return any("Namespace" in spelled for annotation in annotations for spelled in names_in(annotation))


def names_in(annotation: ast.AST) -> Iterable[str]:
    """Yield the names, attributes and texts in an annotation."""
    for node in _nodes(annotation):
        yield from (str(value) for key, value in vars(node).items() if key in ("id", "attr", "value"))


def formatted(text: ast.JoinedStr) -> Iterator[tuple[int, str]]:
    """Yield line and kind of each percentage, size in bytes, ratio and interval that an f-string formats itself."""
    for before, part, after in zip([None, *text.values], text.values, [*text.values[1:], None], strict=False):
        if not isinstance(part, ast.FormattedValue):
            continue
        form = ast.unparse(part.format_spec)[2:-1] if part.format_spec else ""
        behind = after.value if isinstance(after, ast.Constant) and isinstance(after.value, str) else ""
        if form.endswith("%") or (
            form.endswith(("f", "g")) and (NOT_CSS.match(behind) or (PERCENT.match(behind) and "width" in behind))
        ):
            yield text.lineno, "formats a percentage"
        elif form and UNIT.match(behind):
            yield text.lineno, "formats bytes"
        elif form.endswith("f") and re.match(r"x(?!\w)|\u00d7", behind):
            yield text.lineno, "formats a ratio"
        elif form.endswith(("f", "g")) and re.match(r"[\u2013]|-$| to $| $", behind) and _opens(before):
            yield text.lineno, "formats an interval"


def _opens(before: ast.expr | None) -> bool:
    return isinstance(before, ast.Constant) and str(before.value).endswith(("[", "("))


def scaled(text: ast.JoinedStr) -> Iterator[tuple[int, str]]:
    """Yield the line of each number of bytes that is divided or shifted inside an f-string."""
    for node in _nodes(text):
        if isinstance(node, ast.BinOp) and (
            isinstance(node.op, ast.RShift) or (isinstance(node.op, ast.Div) and "2 **" in ast.unparse(node.right))
        ):
            yield text.lineno, "scales bytes"

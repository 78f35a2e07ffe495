"""What the names of a program are on one backend, and on which backends it can use them. Pure.

A name has every value that it is ever given, as bound in the order in which the program's lines run: imported, the
project's own, or an expression. What depends on the backend alone, a condition or a table of one entry for each, is
decided. Also the arguments that calls declare.

Full names, such as `tensorflow.data.Dataset` whatever the program calls it, are looked up in tables, at the end: facts
about other libraries, which change with their versions. What prepares data runs on every backend: `fit` takes the
tensors, data sets and loaders of all libraries. What is part of a model or of its training step needs the library's own
backend.
"""

from __future__ import annotations

import ast
import posixpath
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

TENSORFLOW, JAX, TORCH = "tensorflow", "jax", "torch"
ALL = (TENSORFLOW, JAX, TORCH)
MOST_DEPTH = 40  # of names that are given other names
MOST_VALUES = 16  # of a name; the first ones say what it is
ASKS_BACKEND = ("keras.backend.backend", "keras.config.backend", "keras.src.backend.backend")
VARIABLE = "KERAS_BACKEND"
READS_VARIABLE = frozenset(("os.environ.get", "os.getenv"))
COLLECTIONS = (ast.List, ast.Tuple, ast.Set)


@dataclass(frozen=True, slots=True, order=True)
class SourceLine:
    """A line of a file of the project."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Project:
    """The modules of a project, by their paths from its folder; each is parsed once."""

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self.sources = sources
        self.unread: dict[str, str] = {}
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, path: str) -> ast.Module | None:
        """Return a module's syntax tree, None for a file that cannot be parsed, which is then in `unread`."""
        if path not in self._trees:
            try:
                with warnings.catch_warnings(action="ignore"):
                    self._trees[path] = ast.parse(self.sources[path], path)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
                self.unread[path] = f"{getattr(error, 'msg', None) or 'is no source of Python'}{line}"
                self._trees[path] = None
        return self._trees[path]

    def module(self, name: str, folders: Iterable[str]) -> str | None:
        """Return the file of a module by its full name, looked for in these folders; None if the project has none."""
        relative = name.replace(".", "/")
        for folder in folders:
            for path in (f"{relative}.py", f"{relative}/__init__.py"):
                if (file := posixpath.normpath(posixpath.join(folder, path))) in self.sources:
                    return file
        return None


@dataclass(frozen=True, slots=True)
class Given:
    """What a name is given: an expression in a module."""

    node: ast.expr
    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A function or class of the project."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    path: str


@dataclass(frozen=True, slots=True)
class OwnModule:
    """A module of the project."""

    path: str


Resolved = str | Definition | OwnModule
Binding = Resolved | Given


@dataclass(slots=True)
class ProgramNames:
    """The names of one program's modules as one backend runs it; `path` is the module that is being followed."""

    project: Project
    script: str
    backend: str
    relative_import: SourceLine | None = None
    names: dict[str, dict[str, list[Binding]]] = field(default_factory=dict)
    path: str = ""
    _folders: tuple[str, ...] = ()
    _asked: dict[tuple[str, str], tuple[Resolved, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folders = [posixpath.dirname(self.script)]
        while folders[-1]:
            folders.append(posixpath.dirname(folders[-1]))
        self._folders = tuple(posixpath.join(folder, source) for folder in folders for source in ("", "src"))

    def full_name(self, node: ast.ImportFrom) -> str:
        """Return the name of the module from which something is imported; of a relative one its path's."""
        if not node.level:
            return node.module or ""
        if self.path == self.script:
            self.relative_import = self.relative_import or SourceLine(self.path, node.lineno)
        folder = posixpath.dirname(self.path)
        for _ in range(node.level - 1):
            folder = posixpath.dirname(folder)
        return ".".join(part for part in (*folder.split("/"), node.module or "") if part)

    def find(self, name: str) -> str | None:
        """Return the file of an own module, looked for in the program's folder and in those around it."""
        return self.project.module(name, self._folders)

    def bind(self, name: str, binding: Binding) -> None:
        """Give a name of the followed module one more value."""
        bindings = self.names[self.path].setdefault(name, [])
        if len(bindings) < MOST_VALUES and binding not in bindings:
            bindings.append(binding)

    def resolved(self, node: ast.expr | None, depth: int = 0) -> Iterator[Resolved]:
        """Yield what an expression may be: the full name of something imported, `()` after it if called, or own."""
        if depth > MOST_DEPTH:
            return
        match node:
            case ast.Name(id=name):
                yield from self._named(name, depth)
            case ast.Attribute(value=value, attr=name):
                for base in dict.fromkeys(self.resolved(value, depth + 1)):
                    yield from self._member(base, name, depth)
            case ast.Call(func=function):
                for base in dict.fromkeys(self.resolved(function, depth + 1)):
                    if isinstance(base, str):
                        yield f"{base}()"
                    elif isinstance(base, Definition) and isinstance(base.node, ast.ClassDef):
                        yield base  # an instance is followed as its class
            case ast.IfExp(test=test, body=body, orelse=other):
                truth = self.truth(test)
                for branch in ([body] if truth is not False else []) + ([other] if not truth else []):
                    yield from self.resolved(branch, depth + 1)
            case ast.Subscript() if (chosen := self.dispatched(node)) is not None:
                yield from self.resolved(chosen, depth + 1)

    def _named(self, name: str, depth: int) -> Sequence[Resolved]:
        """Return what a name may be. One that is given itself, as in `data = data.map(f)`, has its other values."""
        key = (self.path, name)
        if key in self._asked:
            return self._asked[key]
        self._asked[key] = ()  # while it is being asked for
        resolved = tuple(dict.fromkeys(self._bound(self.names.get(self.path, {}).get(name, ()), depth)))[:MOST_VALUES]
        self._asked[key] = resolved
        if depth == 0:
            self._asked = {}
        return resolved

    def _bound(self, bindings: Iterable[Binding], depth: int) -> Iterator[Resolved]:
        for binding in list(bindings):
            if isinstance(binding, Given):
                with self.within(binding.path):
                    values = list(self.resolved(binding.node, depth + 1))
                yield from values
            else:
                yield binding

    def _member(self, base: Resolved, name: str, depth: int) -> Iterator[Resolved]:
        if isinstance(base, str):
            file = self.find(f"{base}.{name}")
            yield OwnModule(file) if file and file in self.names else f"{base}.{name}"
        elif isinstance(base, OwnModule):
            if base.path.endswith("/__init__.py"):
                file = self.project.module(name, (posixpath.dirname(base.path),))
                if file is not None and file in self.names:
                    yield OwnModule(file)
            yield from self._bound(self.names.get(base.path, {}).get(name, ()), depth)

    @contextmanager
    def within(self, path: str) -> Iterator[None]:
        """Return the context in which names are those of another module."""
        before, self.path = self.path, path
        try:
            yield
        finally:
            self.path = before

    def _only_value(self, node: ast.expr) -> Given | None:
        """Return the one value that a name is ever given."""
        values = self.names.get(self.path, {}).get(node.id, []) if isinstance(node, ast.Name) else []
        return values[0] if len(values) == 1 and isinstance(values[0], Given) else None

    def asks_backend(self, node: ast.expr, depth: int = 0) -> bool:
        """Return whether an expression is the name of the backend."""
        if isinstance(node, ast.Subscript):
            return self.is_variable(node)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("lower", "strip"):
                return self.asks_backend(node.func.value, depth)
            names = {keras_name(name) for name in self.resolved(node.func) if isinstance(name, str)}
            reads_variable = bool(READS_VARIABLE & names) and bool(node.args)
            return not names.isdisjoint(ASKS_BACKEND) or (reads_variable and text_of(node.args[0]) == VARIABLE)
        given = self._only_value(node)
        if given is None or depth > MOST_DEPTH:
            return False
        with self.within(given.path):
            return self.asks_backend(given.node, depth + 1)

    def is_variable(self, node: ast.Subscript) -> bool:
        """Return whether an expression is `os.environ["KERAS_BACKEND"]`."""
        return text_of(node.slice) == VARIABLE and "os.environ" in self.resolved(node.value)

    def truth(self, test: ast.expr, depth: int = 0) -> bool | None:
        """Return what a condition is on this backend, None if it does not depend on that alone."""
        if depth > MOST_DEPTH:
            return None
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self.truth(operand, depth + 1)
                return None if value is None else not value
            case ast.BoolOp(op=op, values=conditions):
                values = {self.truth(value, depth + 1) for value in conditions}
                decisive = isinstance(op, ast.Or)
                return decisive if decisive in values else (None if None in values else not decisive)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(left, op, right)
            case ast.Name() if (given := self._only_value(test)) is not None:
                with self.within(given.path):
                    return self.truth(given.node, depth + 1)
            case ast.Call(func=function, args=[], keywords=[]):
                return self._returned_truth(function, depth)
        return None

    def _returned_truth(self, function: ast.expr, depth: int) -> bool | None:
        """Return what a function of the project without arguments returns, if it only returns a condition."""
        definitions = [name for name in self.resolved(function) if isinstance(name, Definition)]
        if len(definitions) != 1 or not isinstance(last := definitions[0].node.body[-1], ast.Return):
            return None
        if last.value is None:
            return None
        with self.within(definitions[0].path):
            return self.truth(last.value, depth + 1)

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool | None:
        if isinstance(left, ast.Name) and left.id == "__name__":
            is_main = self.path == self.script and text_of(right) == "__main__"
            return is_main == isinstance(op, ast.Eq)
        if self.asks_backend(right):
            left, right = right, left
        if not self.asks_backend(left):
            return None
        texts = [text_of(item) for item in right.elts] if isinstance(right, COLLECTIONS) else [text_of(right)]
        if None in texts:
            return None
        return (self.backend in texts) == isinstance(op, ast.Eq | ast.In | ast.Is)

    def dispatched(self, node: ast.Subscript) -> ast.expr | None:
        """Return this backend's value of `{"jax": ..., "torch": ...}[backend]`; None if it is no such table."""
        table: ast.expr = node.value
        if (given := self._only_value(table)) is not None:
            table = given.node
        if not isinstance(table, ast.Dict) or not self.asks_backend(node.slice):
            return None
        return dict(zip(map(text_of, table.keys), table.values, strict=True)).get(self.backend)


def asks_main(test: ast.expr) -> bool:
    """Return whether a condition is that of a module that is run, `__name__ == "__main__"`."""
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def constant(node: ast.expr | None) -> object:
    """Return the value of a constant, else None."""
    return node.value if isinstance(node, ast.Constant) else None


def text_of(node: ast.expr | None) -> str | None:
    """Return the value of a text constant, else None."""
    value = constant(node)
    return value if isinstance(value, str) else None


def short(node: ast.AST, most: int = 60) -> str:
    """Return the text of a piece of a program on one line, cut if it is long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


# The arguments that a program declares.


def required_words(call: ast.Call, method: str) -> list[str]:
    """Return the words of a required argument that a call of argparse or absl declares: an option, and its value."""
    words = {word.arg: word.value for word in call.keywords}
    names = [text for argument in call.args if (text := text_of(argument)) is not None]
    is_required = bool(constant(words.get("required")))
    if method == "add_subparsers" and is_required:
        return ["COMMAND"]
    if method == "add_argument" and names:
        count = words.get("nargs")
        is_optional = constant(count) in ("?", "*") or (isinstance(count, ast.Attribute) and count.attr == "REMAINDER")
        if is_required or not (names[0].startswith("-") or is_optional):
            return _argument_words(max(names, key=len), words.get("choices"))
    if names and (method == "mark_flag_as_required" or (method.startswith("DEFINE_") and is_required)):
        return _argument_words(f"--{names[0]}")
    return []


def required_option(decorator: ast.Call, resolved: Collection[Resolved]) -> list[str]:
    """Return the words of a required option or argument of a command of click."""
    names = [text for argument in decorator.args if (text := text_of(argument)) is not None]
    words = {word.arg: constant(word.value) for word in decorator.keywords}
    is_required = "click.option" in resolved and bool(words.get("required"))
    is_argument = "click.argument" in resolved and {"required", "default", "nargs"}.isdisjoint(words)
    return _argument_words(max(names, key=len)) if names and (is_required or is_argument) else []


def _argument_words(name: str, choices: ast.expr | None = None) -> list[str]:
    """Return an argument as words: its value is the first of its choices, else its name in capitals."""
    first = constant(choices.elts[0]) if isinstance(choices, COLLECTIONS) and choices.elts else None
    value = name.lstrip("-").upper().replace("-", "_") if first is None else str(first)
    return [name, value] if name.startswith("-") else [value]


# The backends on which a program can use a name.


class Role(Enum):
    """What a piece of a program is part of."""

    PLAIN = "the program, its data and its own loop"
    BUILD = "the making of a layer or model"
    MODEL = "a layer, model, loss or training step"
    PIPELINE = "a data set's function"
    TF_DATA = "a function of tf.data, which TensorFlow traces"


# Names that need a backend wherever they are used, with everything in them. Training code, never only data.
ANYWHERE = {
    "tensorflow.GradientTape": (TENSORFLOW,),
    "tensorflow.Module": (TENSORFLOW,),
    "tensorflow.compat.v1.Session": (TENSORFLOW,),
    "tensorflow.compat.v1.keras": (),
    "tensorflow.compat.v1.placeholder": (TENSORFLOW,),
    "tensorflow.compat.v1.train": (TENSORFLOW,),
    "tensorflow.custom_gradient": (TENSORFLOW,),
    "tensorflow.distribute": (TENSORFLOW,),
    "tensorflow.estimator": (),
    "tensorflow.gradients": (TENSORFLOW,),
    "tensorflow.optimizers": (TENSORFLOW,),
    "tensorflow.train.Checkpoint": (TENSORFLOW,),
    "tensorflow.train.CheckpointManager": (TENSORFLOW,),
    "tensorflow.xla": (TENSORFLOW,),
    "keras.layers.TFSMLayer": (TENSORFLOW,),
    "torch.amp": (TORCH,),
    "torch.autocast": (TORCH,),
    "torch.autograd": (TORCH,),
    "torch.compile": (TORCH,),
    "torch.enable_grad": (TORCH,),
    "torch.func": (TORCH,),
    "torch.jit": (TORCH,),
    "torch.nn": (TORCH,),
    "torch.no_grad": (TORCH,),
    "torch.optim": (TORCH,),
    "torchvision.models": (TORCH,),
    "keras.layers.TorchModuleWrapper": (TORCH,),
    "jax.checkpoint": (JAX,),
    "jax.grad": (JAX,),
    "jax.jit": (JAX,),
    "jax.jvp": (JAX,),
    "jax.lax": (JAX,),
    "jax.make_mesh": (JAX,),
    "jax.pmap": (JAX,),
    "jax.sharding": (JAX,),
    "jax.value_and_grad": (JAX,),
    "jax.vjp": (JAX,),
    "jax.vmap": (JAX,),
    "keras.layers.FlaxLayer": (JAX, TENSORFLOW),
    "keras.layers.JaxLayer": (JAX, TENSORFLOW),
    "keras.distribution.DataParallel": (JAX,),
    "keras.distribution.DeviceMesh": (JAX,),
    "keras.distribution.ModelParallel": (JAX,),
    "keras.distribution.set_distribution": (JAX,),
    # Not in Keras 3.
    "keras.engine": (),
    "keras.layers.CuDNNGRU": (),
    "keras.layers.CuDNNLSTM": (),
    "keras.layers.experimental": (),
    "keras.optimizers.legacy": (),
    "keras.wrappers.scikit_learn": (),
}
# Exceptions from the above: they also prepare data.
UNLESS_IN_MODEL = ("torch.nn.functional", "torch.nn.utils.rnn")
# Packages that work with one backend alone, and which uses of TensorFlow are for a data set where they are functions.
PACKAGES = {
    "keras_core": (),
    "tensorflow_addons": (),
    "tf_keras": (),
    "tensorflow_gnn": (TENSORFLOW,),
    "tensorflow_model_optimization": (TENSORFLOW,),
    "tensorflow_probability": (TENSORFLOW,),
    "tensorflow_ranking": (TENSORFLOW,),
    "tensorflow_recommenders": (TENSORFLOW,),
    "accelerate": (TORCH,),
    "lightning": (TORCH,),
    "pytorch_lightning": (TORCH,),
    "torch_geometric": (TORCH,),
    "torchmetrics": (TORCH,),
    "equinox": (JAX,),
    "flax": (JAX,),
    "haiku": (JAX,),
    "optax": (JAX,),
}
# Libraries whose operations belong to a backend if they are part of a model.
OPERATIONS = {"tensorflow": TENSORFLOW, "tensorflow_hub": TENSORFLOW, "torch": TORCH, "torchvision": TORCH, "jax": JAX}
# They train: a program that has them outside of a training step of Keras has a loop of its own.
GRADIENTS = ("tensorflow.GradientTape", "jax.grad", "jax.value_and_grad", "torch.autograd.grad")
# Types, which are no operations.
_TYPE = re.compile(
    r"(b?float|q?u?int|complex)\d+(_\w+)?|float|double|half|int|long|string|bool|bool_|DType|[Dd]evice|dtype"
    r"|Array|\w*Tensor|TensorShape|TensorSpec|newaxis|pi|inf"
)
# What is left of `keras.backend`; the operations of Keras 2 are there only as `tensorflow.keras.backend`.
_BACKEND_NAMES = frozenset((
    "backend", "clear_session", "epsilon", "floatx", "get_uid", "image_data_format", "is_float_dtype", "is_int_dtype",
    "is_keras_tensor", "result_type", "set_epsilon", "set_floatx", "set_image_data_format", "standardize_dtype",
))  # fmt: skip
_KERAS_BACKEND = "keras.backend."
_NAME_SCOPE = "tensorflow.keras.backend.name_scope"  # it names operations of TensorFlow, on other backends none
# Names that Keras 3 has only as a part of `tensorflow.keras`. They prepare data.
_ONLY_IN_TENSORFLOW = ("keras.preprocessing.image.ImageDataGenerator", "keras.preprocessing.text")
_TF_KERAS = ("tensorflow.keras", "tensorflow.python.keras")


def keras_name(name: str) -> str:
    """Return a full name as Keras has it: TensorFlow's Keras is Keras 3, on whatever backend."""
    for prefix in _TF_KERAS:
        if name == prefix or name.startswith(f"{prefix}."):
            return "keras" + name.removeprefix(prefix)
    return name


def is_keras(name: str) -> bool:
    """Return whether a full name is one of Keras or of a package of Keras layers and models."""
    return keras_name(name).partition(".")[0] in ("keras", "keras_hub", "keras_nlp", "keras_cv", "tf_keras")


def allowed(name: str, role: Role, *, called: bool) -> tuple[str, ...]:
    """Return the backends on which a program can use this name there; `called` if it calls it."""
    keras = keras_name(name)
    package = keras.partition(".")[0]
    if package in PACKAGES:
        return PACKAGES[package]
    if keras.startswith(_KERAS_BACKEND) and keras.split(".")[2] not in _BACKEND_NAMES and name != _NAME_SCOPE:
        return () if keras == name else (TENSORFLOW,)
    if keras == name and keras.startswith(_ONLY_IN_TENSORFLOW):
        return ()
    if keras.startswith(("keras.ops.", "keras.random.")) and role is Role.TF_DATA:
        return (TENSORFLOW,)
    if keras == "tensorflow.function":
        return ALL if role in (Role.PIPELINE, Role.TF_DATA) else (TENSORFLOW,)
    if keras == "tensorflow.Variable":
        return (TENSORFLOW,) if role in (Role.MODEL, Role.BUILD) else ALL
    for prefix, backends in ANYWHERE.items():
        if (keras == prefix or keras.startswith(f"{prefix}.")) and not keras.startswith(UNLESS_IN_MODEL):
            return backends
    if role is Role.MODEL and package in OPERATIONS and _is_operation(keras, called=called):
        return (OPERATIONS[package],)
    return ALL


def _is_operation(name: str, *, called: bool) -> bool:
    """Return whether a name of a library is an operation: `tf.nn.relu`, also if only named; `tf.float32` is none."""
    parts = name.split(".")
    if len(parts) < 2 or parts[1] == "data" or (len(parts) > 2 and parts[1] == "config"):
        return False
    return not _TYPE.fullmatch(parts[-1]) and (called or parts[1] in ("nn", "math", "keras") or len(parts) == 2)

"""The Keras programs of a project: what each trains, its arguments, and the backends that it allows. Read, never run.

Pure: from the source of a project's modules to values. A program is followed as Python runs it, from its first line,
once for each backend: own modules at their import, functions and classes where they are named, methods that Keras calls
or that some line names. A branch that asks for the backend is taken as that backend takes it.

Limits: values are not computed, so that a name has every value that it is ever given, and a branch that asks for
something else is taken both ways. A restriction is a use that fails on a backend (`program_names.allowed`); what is in
no table there restricts nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from keras_matrix.analysis.program_names import (
    ALL,
    GRADIENTS,
    JAX,
    MOST_DEPTH,
    TENSORFLOW,
    TORCH,
    Definition,
    Given,
    OwnModule,
    ProgramNames,
    Project,
    Role,
    SourceLine,
    allowed,
    asks_main,
    is_keras,
    keras_name,
    required_option,
    required_words,
    short,
    text_of,
)

FIT, STEPS, STEP, LOOP = "fit", "steps", "step", "loop"
# What a program does, what says most of it first; a loop of its own can be measured once it is marked.
KINDS = (FIT, STEPS, STEP, LOOP, "evaluate", "predict", "predict_on_batch")
# Methods of a Keras model, and which of these kinds they are.
METHODS = {name: name for name in (FIT, "evaluate", "predict", "predict_on_batch")} | {"train_on_batch": LOOP}
# Methods that Keras calls by itself: with those of two underscores, and `on_...` of callbacks.
CALLED_BY_KERAS = frozenset((
    "build", "call", "compute_loss", "compute_metrics", "compute_mask", "compute_output_shape", "forward", "get_config",
    "predict_step", "reset_state", "result", "test_step", "train_step", "update_state",
))  # fmt: skip
ON_DATA = frozenset(("map", "filter", "flat_map", "interleave", "from_generator", "take_while", "apply", "scan"))
OPENED_DATA = ("keras.utils.image_dataset_from_directory", "keras.utils.text_dataset_from_directory")
# Layers that TensorFlow computes on every backend, with the functions that they get, such as `standardize`.
OF_TEXTS = ("keras.layers.TextVectorization", "keras.layers.StringLookup", "keras.layers.Hashing")
ENDS = ("sys.exit", "os._exit", "exit", "quit")
# Classes of Keras that are no part of a model: they run between its steps, or bring data.
BESIDE_THE_MODEL = ("keras.callbacks.", "keras.utils.", "keras.Callback")
STEP_WITH_STATE = 3  # arguments of JAX's train_step(self, state, data)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, order=True)
class SourceCall:
    """What a program can be measured at: one of `KINDS`, and where."""

    kind: str
    place: SourceLine


@dataclass(frozen=True, slots=True)
class Restriction:
    """What a program uses, where, and the backends on which that fails."""

    use: str
    place: SourceLine
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KerasProgram:
    """A program: its calls, the words of its required arguments, and what restricts its backends.

    `sets_backend` is where it sets `KERAS_BACKEND` itself; `as_module` a relative import, with which Python does not
    run it by its path.
    """

    path: str
    calls: tuple[SourceCall, ...]
    required: tuple[str, ...]
    restrictions: tuple[Restriction, ...]
    sets_backend: SourceLine | None = None
    as_module: SourceLine | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that nothing in it excludes."""
        return tuple(name for name in ALL if not any(name in found.backends for found in self.restrictions))

    @property
    def call(self) -> SourceCall:
        """What is measured by default."""
        return min(self.calls, key=lambda call: KINDS.index(call.kind))


def program_of(project: Project, path: str) -> KerasProgram | None:
    """Return the program that a file is when it is run; None if it trains and predicts nothing with Keras."""
    tree = project.tree(path)
    if tree is None or not _acts(tree):
        return None
    try:
        readings = {backend: ProgramReading(project, path, backend).followed() for backend in ALL}
    except RecursionError:
        project.unread[path] = "is nested too deeply"
        return None
    if not any(reading.uses_keras and reading.calls for reading in readings.values()):
        return None
    return _joined(path, readings)


def _acts(tree: ast.Module) -> bool:
    """Return whether a module does something when it is run, rather than only define."""
    definitions = (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)
    return any(
        any(isinstance(part, ast.Call) for part in ast.walk(node))
        for node in tree.body
        if not isinstance(node, definitions)
    )


def _joined(path: str, readings: Mapping[str, ProgramReading]) -> KerasProgram:
    """Return a program from its readings, one for each backend; its calls are those on the backends that it allows."""
    excluded: dict[tuple[str, SourceLine], list[str]] = {}
    for backend, reading in readings.items():
        for use in reading.restrictions:
            excluded.setdefault(use, []).append(backend)
    restrictions = tuple(Restriction(*use, tuple(names)) for use, names in sorted(excluded.items(), key=_by_place))
    with_calls = [reading for reading in readings.values() if reading.calls]
    running = [reading for reading in with_calls if not reading.restrictions] or with_calls
    calls = dict.fromkeys(call for reading in running for call in reading.calls)
    first = running[0]
    required = tuple(first.required)
    return KerasProgram(path, tuple(calls), required, restrictions, first.sets_backend, first.relative_import)


def _by_place(item: tuple[tuple[str, SourceLine], list[str]]) -> SourceLine:
    return item[0][1]


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """A class that the program uses: its methods on this backend, and whether it is a part of Keras models."""

    definition: Definition
    is_model: bool
    methods: dict[str, list[_Function]] = field(default_factory=dict)


@dataclass(slots=True)
class ProgramReading(ProgramNames):
    """One program read as one backend runs it."""

    calls: dict[SourceCall, None] = field(default_factory=dict)
    restrictions: dict[tuple[str, SourceLine], None] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    sets_backend: SourceLine | None = None
    uses_keras: bool = False
    _visited: set[tuple[int, Role]] = field(default_factory=set)
    _classes: dict[int, _Class] = field(default_factory=dict)
    _attributes: dict[tuple[str, Role], None] = field(default_factory=dict)
    _role: Role = Role.PLAIN
    _is_chosen: bool = False  # in a branch that this backend takes and another does not
    _chosen: set[int] = field(default_factory=set)  # functions defined in one
    _class: _Class | None = None

    def followed(self) -> ProgramReading:
        """Follow the program to its end, and return this reading."""
        self._module(self.script)
        return self

    # Statements, as they run.

    def _module(self, path: str) -> None:
        if path in self.names:
            return
        self.names[path] = {}
        if (tree := self.project.tree(path)) is None:
            return
        before = self.path, self._role, self._is_chosen, self._class
        self.path, self._role, self._is_chosen, self._class = path, Role.PLAIN, False, None
        self._block(tree.body)
        self.path, self._role, self._is_chosen, self._class = before

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements; return whether one of them leaves the block for certain."""
        return any(self._statement(node) for node in statements)

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Import():
                self._import(node)
            case ast.ImportFrom():
                self._import_from(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(node)
            case ast.ClassDef():
                self.bind(node.name, Definition(node, self.path))
            case ast.If():
                return self._if(node)
            case ast.Match() if self.asks_backend(node.subject):
                return self._match(node)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assign(node)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr)
                    if isinstance(item.optional_vars, ast.Name):
                        self.bind(item.optional_vars.id, Given(item.context_expr, self.path))
                return self._block(node.body)
            case _:
                self._children(node)
                return self._leaves(node)
        return False

    def _leaves(self, node: ast.stmt) -> bool:
        """Return whether a statement leaves its block for certain; on a branch of this backend it refuses it."""
        match node:
            case ast.Return():
                return True
            case ast.Assert() if self.truth(node.test) is False:
                self._exclude(f"assert {short(node.test)}", node)
                return True
            case ast.Raise():
                leaves, text = True, f"raise {short(node.exc)}" if node.exc else ""
            case ast.Expr(value=ast.Call() as call):
                names = {*self.resolved(call.func)} | ({call.func.id} if isinstance(call.func, ast.Name) else set())
                leaves, text = not names.isdisjoint(ENDS), short(call)
            case _:
                return False
        if leaves and text and self._is_chosen:
            self._exclude(text, node)
        return leaves

    def _children(self, node: ast.AST) -> None:
        """Follow the parts of a statement or expression in which nothing is left out."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child)
            elif isinstance(child, ast.expr):
                self._expression(child)
            elif isinstance(child, ast.ExceptHandler):
                with self._branch(is_chosen=False):
                    self._children(child)
            elif not isinstance(child, ast.expr_context | ast.operator):
                self._children(child)

    def _if(self, node: ast.If) -> bool:
        truth = self.truth(node.test)
        if truth is not None:
            with self._branch(is_chosen=self._is_chosen or not asks_main(node.test)):
                return self._block(node.body if truth else node.orelse)
        self._expression(node.test)
        with self._branch(is_chosen=False):
            ended = self._block(node.body)
            return self._block(node.orelse) and ended and bool(node.orelse)

    @contextmanager
    def _branch(self, *, is_chosen: bool) -> Iterator[None]:
        """Return the context of a branch: what leaves one that this backend takes refuses the backend."""
        before, self._is_chosen = self._is_chosen, is_chosen
        yield
        self._is_chosen = before

    def _match(self, node: ast.Match) -> bool:
        for case in node.cases:
            if self.backend in _pattern_texts(case.pattern) or isinstance(case.pattern, ast.MatchAs):
                with self._branch(is_chosen=True):
                    return self._block(case.body)
        return False

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            self._load(alias.name)
            name = alias.name if alias.asname else top
            module = self.find(name)
            self.bind(alias.asname or top, OwnModule(module) if module else name)
            self.uses_keras |= module is None and is_keras(alias.name)

    def _import_from(self, node: ast.ImportFrom) -> None:
        name = self.full_name(node)
        own = self._load(name)
        for alias in node.names:
            target = alias.asname or alias.name
            if alias.name == "*" and own:
                for key, bindings in list(self.names[own].items()):
                    for binding in bindings:
                        self.bind(key, binding)
            elif submodule := self._load(f"{name}.{alias.name}"):
                self.bind(target, OwnModule(submodule))
            elif own:
                for binding in self.names[own].get(alias.name, ()):
                    self.bind(target, binding)
            elif node.level == 0:
                self.bind(target, f"{name}.{alias.name}")
                self.uses_keras |= is_keras(name)

    def _load(self, name: str) -> str | None:
        """Follow an own module at its first import, with the packages around it; return its file."""
        parts = name.split(".")
        for count in range(1, len(parts)):
            if (package := self.find(".".join(parts[:count]))) is not None:
                self._module(package)
        if (module := self.find(name)) is not None:
            self._module(module)
        return module

    def _define(self, node: _Function) -> None:
        self.bind(node.name, definition := Definition(node, self.path))
        if self._is_chosen:
            self._chosen.add(id(node))
        for value in (*node.args.defaults, *node.args.kw_defaults):
            if value is not None:
                self._expression(value)
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                self.required |= dict.fromkeys(required_option(decorator, {*self.resolved(decorator.func)}))
        calls_it = [name for decorator in node.decorator_list for name in self.resolved(decorator)]
        if any(isinstance(name, str) and not name.startswith("tensorflow.function") for name in calls_it):
            self._reach(definition, self._role)  # a command of click, a step that is registered

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                self.bind(target.id, Given(node.value, self.path))
            elif isinstance(target, ast.Subscript) and self.is_variable(target):
                self.sets_backend = self.sets_backend or SourceLine(self.path, node.lineno)
            elif isinstance(target, ast.Attribute | ast.Subscript):
                self._expression(target.value)
        if not (isinstance(node.value, ast.Dict) and _backend_keys(node.value)):  # else where it is asked for one
            self._expression(node.value)

    # Expressions, and what they use.

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.IfExp(test=test):
                truth = self.truth(test)
                branches = ([node.body] if truth is not False else []) + ([node.orelse] if not truth else [])
                for part in (test, *branches):
                    self._expression(part)
            case ast.BoolOp(op=op, values=values):
                for value in values:
                    self._expression(value)
                    if self.truth(value) is isinstance(op, ast.Or):
                        return
            case ast.Subscript(value=ast.Dict() | ast.Name()) if self.asks_backend(node.slice):
                chosen = self.dispatched(node)
                if chosen is not None:
                    self._expression(chosen)
                else:
                    self._exclude(f"no {self.backend!r} in {short(node)}", node)
            case ast.Subscript(slice=ast.Constant(value=int(number))) if number > 0 and self._is_argv(node.value):
                self.required[f"ARGUMENT{number}"] = None
            case ast.Call():
                self._call(node)
            case ast.Name() | ast.Attribute():
                self._used(node, called=False)
            case _:
                self._children(node)

    def _is_argv(self, node: ast.expr) -> bool:
        """Return whether it is `sys.argv`, of a module that does not look at its length."""
        tree = self.project.tree(self.path)
        return "sys.argv" in self.resolved(node) and tree is not None and "len(sys.argv)" not in ast.unparse(tree)

    def _used(self, node: ast.Name | ast.Attribute, *, called: bool) -> None:
        """Follow the use of a name: what it restricts, and the functions, classes and methods that it may be."""
        resolved = list(dict.fromkeys(self.resolved(node)))
        imported = [name for name in resolved if isinstance(name, str) and "()" not in name]
        if imported and len(imported) == len(resolved):
            self.uses_keras |= any(map(is_keras, imported))
            options = [allowed(name, self._role, called=called) for name in imported]
            if not any(self.backend in backends for backends in options):
                self._exclude(imported[0].replace("tensorflow.", "tf.", 1), node)
        for name in resolved:
            if isinstance(name, Definition):
                self._reach(name, self._role)
        if isinstance(node, ast.Attribute) and not imported:
            self._refer(node.attr)
            self._expression(node.value)

    def _call(self, node: ast.Call) -> None:
        names = [keras_name(name) for name in self.resolved(node.func) if isinstance(name, str)]
        if isinstance(node.func, ast.Name | ast.Attribute):
            self._used(node.func, called=True)
        else:
            self._expression(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        self._trains(node, names, method)
        self.required |= dict.fromkeys(required_words(node, method))
        if {*names} & {"keras.Input", "keras.layers.Input", "keras.layers.InputLayer"}:
            self._input(node)
        if "keras.config.set_backend" in names and node.args and text_of(node.args[0]) not in (None, self.backend):
            self._exclude(short(node), node)
        role = self._role_of_arguments(node, names, method)
        for argument in (*node.args, *(word.value for word in node.keywords)):
            self._passed(argument, role)

    def _role_of_arguments(self, node: ast.Call, names: Sequence[str], method: str) -> Role:
        """Return what functions that a call gets are part of: a model, a data set, or what the call is part of."""
        builds = any(
            name.startswith(("keras.layers.", "keras.Sequential", "keras.models.")) and not name.startswith(OF_TEXTS)
            for name in names
        )
        own = [name for name in self.resolved(node.func) if isinstance(name, Definition)]
        if method == "compile" or builds or any(self._is_model(name) for name in own):
            return Role.MODEL
        if method in ON_DATA and not any(map(is_keras, names)) and not any(name.startswith("jax.") for name in names):
            roots = [name for name in names if name.startswith(("tensorflow.data.", "grain."))]
            if roots:
                return Role.TF_DATA if roots[0].startswith("tensorflow.data.") else Role.PLAIN
            return Role.PIPELINE
        is_of_texts = any(name.startswith(OF_TEXTS) for name in names)
        is_of_data = method in ON_DATA and any(name.startswith(OPENED_DATA) for name in names)
        return Role.TF_DATA if is_of_texts or is_of_data else self._role

    def _passed(self, node: ast.expr, role: Role) -> None:
        """Follow an argument; a function that is passed runs in that role, a value is made where the call is."""
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            for element in node.elts:
                self._passed(element, role)
        elif isinstance(node, ast.Dict):
            for value in node.values:
                self._passed(value, role)
        elif isinstance(node, ast.Call) and "functools.partial" in self.resolved(node.func):
            for argument in node.args:
                self._passed(argument, role)
        elif isinstance(node, ast.Name | ast.Attribute | ast.Lambda):
            before, self._role = self._role, role
            self._expression(node)
            self._role = before
        else:
            self._expression(node)

    def _reach(self, definition: Definition, role: Role) -> None:
        """Follow a function or class that the program names."""
        if isinstance(definition.node, ast.ClassDef):
            self._reach_class(definition)
        else:
            self._function(definition.node, definition.path, role)

    def _function(self, node: _Function, path: str, role: Role, owner: _Class | None = None) -> None:
        if (id(node), role) in self._visited:
            return
        self._visited.add((id(node), role))
        before = self.path, self._role, self._is_chosen, self._class
        self.path, self._role, self._is_chosen, self._class = path, role, id(node) in self._chosen, owner
        for decorator in node.decorator_list:
            self._expression(decorator)
        self._block(node.body)
        self.path, self._role, self._is_chosen, self._class = before

    def _is_model(self, definition: Definition, depth: int = 0) -> bool:
        """Return whether a class of the project is, by its bases, a part of Keras models."""
        if not isinstance(definition.node, ast.ClassDef) or depth > MOST_DEPTH:
            return False
        with self.within(definition.path):
            bases = [name for base in definition.node.bases for name in self.resolved(base)]
        return any(
            self._is_model(base, depth + 1)
            if isinstance(base, Definition)
            else isinstance(base, str) and is_keras(base) and not keras_name(base).startswith(BESIDE_THE_MODEL)
            for base in bases
            if base is not definition
        )

    def _reach_class(self, definition: Definition) -> None:
        node = definition.node
        if id(node) in self._classes or not isinstance(node, ast.ClassDef):
            return
        reached = self._classes[id(node)] = _Class(definition, self._is_model(definition))
        before = self.path, self._role, self._is_chosen, self._class
        self.path, self._role, self._is_chosen = definition.path, Role.PLAIN, False
        for part in (*node.bases, *(word.value for word in node.keywords)):
            self._expression(part)
        self._class_body(reached, node.body)
        self.path, self._role, self._is_chosen, self._class = before
        referred = list(self._attributes)
        for name in list(reached.methods):
            if name in CALLED_BY_KERAS or name.startswith(("__", "on_")):
                self._method(reached, name, self._role_of_method(reached, name))
            for role in [role for attribute, role in referred if attribute == name]:
                self._method(reached, name, role)

    def _class_body(self, reached: _Class, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, _FUNCTIONS):
                reached.methods.setdefault(statement.name, []).append(statement)
                if self._is_chosen:
                    self._chosen.add(id(statement))
            elif isinstance(statement, ast.If):
                truth = self.truth(statement.test)
                with self._branch(is_chosen=truth is not None):
                    self._class_body(reached, statement.body if truth is not False else [])
                    self._class_body(reached, statement.orelse if not truth else [])
            else:
                self._statement(statement)

    def _role_of_method(self, reached: _Class, name: str) -> Role:
        if not reached.is_model or name.startswith("on_"):
            return Role.PLAIN
        return Role.BUILD if name in ("__init__", "build", "get_config", "compute_output_shape") else Role.MODEL

    def _method(self, reached: _Class, name: str, role: Role) -> None:
        for method in reached.methods.get(name, ()):
            if reached.is_model and name in ("train_step", "test_step"):
                self._check_step(method, reached.definition.path)
            self._function(method, reached.definition.path, role, reached)

    def _check_step(self, method: _Function, path: str) -> None:
        """Take a training step's arguments: on JAX it gets the state and the data, elsewhere the data alone."""
        arguments = [*method.args.posonlyargs, *method.args.args]
        if method.args.vararg is None and (len(arguments) >= STEP_WITH_STATE) != (self.backend == JAX):
            text = f"{method.name}({', '.join(argument.arg for argument in arguments)})"
            self.restrictions[text, SourceLine(path, method.lineno)] = None

    def _refer(self, name: str) -> None:
        """Follow the methods of this name of all classes that the program uses."""
        if (name, self._role) not in self._attributes:
            self._attributes[name, self._role] = None
            for reached in list(self._classes.values()):
                self._method(reached, name, self._role)

    def _exclude(self, use: str, node: ast.expr | ast.stmt) -> None:
        """Exclude this backend."""
        self.restrictions[use, SourceLine(self.path, node.lineno)] = None

    # What a program trains, and the arguments that it needs.

    def _trains(self, node: ast.Call, names: Sequence[str], method: str) -> None:
        place = SourceLine(self.path, node.lineno)
        is_in_model = self._role is Role.MODEL
        for name in names:
            if name in ("keras_matrix.steps", "keras_matrix.step"):
                self.calls[SourceCall(name.partition(".")[2], place)] = None
            elif name in GRADIENTS and not is_in_model:
                self.calls[SourceCall(LOOP, place)] = None
            elif name.startswith("keras_tuner.") and method == "search":
                self.calls[SourceCall(FIT, place)] = None
        if method == "backward":
            if self.backend != TORCH:
                self._exclude(short(node), node)
            if not is_in_model:
                self.calls[SourceCall(LOOP, place)] = None
        if method in METHODS and isinstance(node.func, ast.Attribute) and not is_in_model:
            is_method_of_keras = self._is_of_keras(node.func.value, method)
            self.calls |= {SourceCall(METHODS[method], place): None} if is_method_of_keras else {}

    def _is_of_keras(self, receiver: ast.expr, method: str) -> bool:
        """Return whether a method is Keras's: not that of another library, nor one that the project defines."""
        if isinstance(receiver, ast.Name) and receiver.id == "self" and self._class is not None:
            return self._class.is_model and method not in self._class.methods
        resolved = list(self.resolved(receiver))
        for definition in resolved:
            if isinstance(definition, Definition) and (reached := self._classes.get(id(definition.node))) is not None:
                return reached.is_model and method not in reached.methods
        imported = [name for name in resolved if isinstance(name, str)]
        return not imported or any(map(is_keras, imported))

    def _input(self, node: ast.Call) -> None:
        """Take the kind of a model's input: texts and ragged tensors are TensorFlow's, sparse ones not PyTorch's."""
        words = {word.arg: word.value for word in node.keywords}
        dtype = words.get("dtype")
        is_text = dtype is not None and (text_of(dtype) == "string" or "tensorflow.string" in self.resolved(dtype))
        is_true = {name for name, value in words.items() if isinstance(value, ast.Constant) and value.value is True}
        if (is_text or "ragged" in is_true) and self.backend != TENSORFLOW:
            self._exclude(short(node), node)
        if "sparse" in is_true and self.backend == TORCH:
            self._exclude(short(node), node)


def _backend_keys(node: ast.Dict) -> bool:
    """Return whether the keys of a table are names of backends."""
    keys = [text_of(key) for key in node.keys]
    return bool(keys) and all(key in ALL for key in keys)


def _pattern_texts(pattern: ast.pattern) -> list[str]:
    """Return the texts of a case, `"jax" | "torch"`."""
    patterns = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
    return [text for part in patterns if isinstance(part, ast.MatchValue) and (text := text_of(part.value)) is not None]

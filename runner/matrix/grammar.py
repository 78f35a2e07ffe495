"""The grammar of a matrix file, in one place: every key with its rule, default and description.

The reader of matrix files, the flags `--set` and `--filter`, and the JSON Schema for editors use the tables below.
The parameters of a workload have rules of the same type, which the catalog defines.

Promise: no value is coerced. A rule accepts a value or describes what it requires. The only conversion is for the
identity of a cell: an integer for a float key becomes a float, so that `0` and `0.0` are the same cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records import compiler_options, settings
from keras_matrix.records.host import device_lists, inherited_environment
from keras_matrix.records.settings import Scalar
from keras_matrix.records.text import near
from keras_matrix.runner.matrix.scalars import say

Axes = dict[str, tuple[Scalar, ...]]
"""The values of each setting or parameter of an entry."""

VERSION = 1
MATRIX = Path("matrix.yaml")  # the file that is read if none is named
MAX_TEXT = 200
LARGEST = "largest"
TO_BE_FOUND = 0  # the batch size of a planned cell with batch_size: largest; no record has it
# Used in paths, labels and SQL identifiers.
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
# A user's workload; the JSON Schema uses the same pattern.
USER_WORKLOAD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# The path of a program in its project; the JSON Schema uses the same pattern.
SCRIPT_PATH = re.compile(r"(?!/)(?!.*(^|/)\.\.(/|$))[A-Za-z0-9_./ -]{1,190}\.py", re.ASCII)
# A call of a program by its number, its kind, or both; the JSON Schema uses the same pattern.
CALL = re.compile(
    rf"[1-9][0-9]{{0,8}}|({'|'.join(settings.OF_CALLS)})(:[1-9][0-9]{{0,8}}| .{{1,190}}:[0-9]{{1,9}})?", re.ASCII
)
SCRIPT_KEYS = ("script", "args", "call", "before", "most_steps")
_NOUNS = {"int": "a whole number", "float": "a number", "str": "text", "any": "true, false, a number or text"}
_NOUNS["cpus"] = "a list of CPUs such as 0-3,8 or a count of them"
_NOUNS["env"] = "variables of the environment, such as {DATA_DIR: /data}"
_NOUNS["torch_compile"] = "arguments of torch.compile, such as {mode: max-autotune}"
_NOUNS["xla_flags"] = "flags of XLA, such as --xla_cpu_enable_fast_math=true"
_NOUNS["gpus"] = "a list of GPUs such as [0, 1] (0,1 on the command line): indices from 0 or UUIDs (GPU-...), each once"


@dataclass(frozen=True, slots=True)
class ValueRule:
    """The rule for a value: one of `choices`, or a `kind` (int, float, bool, str, any, or one of `_FAULTS`).

    A list of GPUs is one value, never an axis; its normal form is a text, as that of a mapping.
    """

    kind: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Scalar, ...] = ()
    default: Scalar | None = None
    meaning: str = ""

    def accepts(self, value: object) -> bool:
        """Return whether the value follows the rule; `true` is not a number and `1` is not a boolean."""
        if any(type(value) is type(choice) and value == choice for choice in self.choices):
            return True
        if self.kind in _FAULTS:
            return _FAULTS[self.kind](value) is None
        return isinstance(value, (bool, int, float, str)) and _is_kind(self.kind, value) and self._in_range(value)

    def problem(self, value: object) -> str | None:
        """Return what is wrong with the value, or None."""
        if self.accepts(value):
            return None
        fault_text = _FAULTS[self.kind](value) if self.kind in _FAULTS else None
        return f"must be {self.words()}, got {fault_text or say(value)}"

    def normal(self, value: Scalar | list[object] | dict[str, object]) -> Scalar:
        """Return the normal form of an accepted value. Adding 0.0 turns -0.0 into 0.0."""
        if self.kind == "env":
            variables = value if isinstance(value, dict) else inherited_environment.variables_of(str(value))
            return inherited_environment.variables_text({name: str(text) for name, text in variables.items()})
        if self.kind == "torch_compile":
            return compiler_options.torch_text(value)
        assert not isinstance(value, dict), "no other rule accepts a mapping"
        if self.kind == "xla_flags":
            return compiler_options.flags_text(value)
        if isinstance(value, list) or (self.kind == "gpus" and value not in self.choices):
            return device_lists.gpu_text(value)
        if self.kind == "cpus" and isinstance(value, str) and value not in self.choices:
            return device_lists.cpu_text(device_lists.parse_cpus(value) or ())
        return float(value) + 0.0 if self.kind == "float" and not isinstance(value, str) else value

    def words(self) -> str:
        """Return the rule in words: `auto, seed or a whole number from 1 to 1000000`."""
        alternatives = [choice if isinstance(choice, str) else say(choice) for choice in self.choices]
        if self.kind == "bool":
            alternatives += ["true", "false"]
        elif self.kind:
            alternatives.append(_NOUNS[self.kind] + self._limits())
        return " or ".join([", ".join(alternatives[:-1]), alternatives[-1]] if len(alternatives) > 1 else alternatives)

    def json_schema(self) -> dict[str, object]:
        """Return the rule as a JSON Schema of one value."""
        options = ([{"enum": list(self.choices)}] if self.choices else []) + self._kind_schema()
        schema: dict[str, object] = dict(options[0]) if len(options) == 1 else {"anyOf": options}
        if self.meaning:
            schema["description"] = self.meaning
        if self.default is not None:
            schema["default"] = {} if self.kind in ("env", "torch_compile") else self.default
        return schema

    def _in_range(self, value: Scalar) -> bool:
        if isinstance(value, (bool, str)):
            return True
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def _limits(self) -> str:
        if self.kind == "str":
            return f" of at most {MAX_TEXT} printable characters"
        low, high = (None if x is None else f"{x:.15g}" for x in (self.minimum, self.maximum))
        if low is not None and high is not None:
            return f" from {low} to {high}"
        return f" of at least {low}" if low is not None else f" of at most {high}" if high is not None else ""

    def _kind_schema(self) -> list[dict[str, object]]:
        types = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "cpus": "integer"}
        if not self.kind:
            return []
        if self.kind == "gpus":
            return _gpus_schema()
        if self.kind == "env":
            names = {"pattern": f"^{inherited_environment.VARIABLE.pattern}$"}
            texts = {"type": ["string", "integer"]}
            return [{"type": "object", "propertyNames": names, "additionalProperties": texts}]
        if self.kind == "torch_compile":
            return [{"type": "object", "properties": _torch_schemas(), "additionalProperties": False}]
        if self.kind == "xla_flags":
            return [{"type": "string", "maxLength": compiler_options.MOST_CHARACTERS}]
        if self.kind == "any":
            return [{"type": ["boolean", "number", "string"]}]
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        cpu_schemas: list[dict[str, object]] = [{"type": "string", "pattern": f"^{device_lists.CPU_PATTERN}$"}]
        schema: dict[str, object] = {"type": types[self.kind]}
        limited_schema = schema | {key: limit for key, limit in limits.items() if limit is not None}
        return [limited_schema, *(cpu_schemas if self.kind == "cpus" else [])]


_FAULTS: dict[str, Callable[[object], str | None]] = {
    "gpus": device_lists.gpu_fault,
    "env": inherited_environment.variables_problem,
    "torch_compile": compiler_options.torch_problem,
    "xla_flags": compiler_options.flags_problem,
}


def _torch_schemas() -> dict[str, object]:
    """Return the schema of each argument of torch.compile: one value, or several as an axis."""
    schemas: dict[str, object] = {}
    for name, values in compiler_options.TORCH_ARGUMENTS.items():
        several = {"type": "array", "items": {"enum": list(values)}, "minItems": 1, "uniqueItems": True}
        schemas[name] = {"anyOf": [{"enum": list(values)}, several]}
    return schemas


def _gpus_schema() -> list[dict[str, object]]:
    """Return the ways to write a list of GPUs: a list, one index, or a text."""
    index: dict[str, object] = {"type": "integer", "minimum": 0, "maximum": device_lists.MOST_GPUS - 1}
    named_gpu_schema: dict[str, object] = {"type": "string", "pattern": f"^{device_lists.GPU_PATTERN}$"}
    items: dict[str, object] = {"items": {"anyOf": [index, named_gpu_schema]}, "minItems": 1, "uniqueItems": True}
    return [{"type": "array", **items}, index, named_gpu_schema]


def _is_kind(kind: str, value: Scalar) -> bool:
    if isinstance(value, str) and kind == "cpus":
        return len(value) <= MAX_TEXT and bool(device_lists.parse_cpus(value))
    if isinstance(value, str):
        return kind in ("str", "any") and len(value) <= MAX_TEXT and value.isprintable()
    if isinstance(value, bool):
        return kind in ("bool", "any")
    return kind in ("float", "any") or (kind in ("int", "cpus") and isinstance(value, int))


# Each of these may be a list, which makes it an axis. Without a default the workload's own, from the catalog, applies.
SETTINGS: dict[str, ValueRule] = {
    "batch_size": ValueRule(
        "int",
        1,
        1_000_000,
        choices=(LARGEST,),
        meaning="samples in one step; by default the workload's own; largest: the most that fit the device's memory",
    ),
    "samples": ValueRule("int", 1, 10_000_000, meaning="samples held in memory; by default the workload's own"),
    "phase": ValueRule(
        choices=settings.PHASES,
        default="fit",
        meaning="train, predict, generate (a language model continues prompts), or compute the loss and its gradients",
    ),
    "epochs": ValueRule("int", 1, 10_000, default=4, meaning="epochs run, the discarded ones included"),
    "discard": ValueRule("int", 0, 9_999, default=1, meaning="first epochs left out of the statistics"),
    "steps_per_epoch": ValueRule(
        "int",
        1,
        1_000_000,
        choices=("auto", "seed"),
        default="auto",
        meaning="steps in an epoch; seed: one pass over the samples; auto: enough for 0.5 s on every backend",
    ),
    "data": ValueRule(choices=settings.DATA_SOURCES, default="synthetic", meaning="where the samples come from"),
    "seed": ValueRule("int", 0, 2**31 - 1, default=0, meaning="seed of data, weights and shuffling"),
    "device": ValueRule(choices=settings.DEVICES, default="cpu", meaning="the device that must be used"),
    "precision": ValueRule(choices=settings.PRECISIONS, default="float32", meaning="Keras dtype policy"),
    "jit": ValueRule(
        choices=("auto", True, False), default="auto", meaning="compile the step; auto: as the backend does"
    ),
    "eager": ValueRule("bool", default=False, meaning="run the step without tracing it"),
    "steps_per_execution": ValueRule("int", 1, 10_000, default=1, meaning="steps run in one call of the backend"),
    "feed": ValueRule(
        choices=settings.FEEDS,
        default="device_resident",
        meaning="batches on device or host, or read by the input pipeline",
    ),
    "threads": ValueRule("int", 1, 1024, choices=("all",), default="all", meaning="CPU threads an operation may use"),
    "compile_cache": ValueRule(
        choices=settings.COMPILE_CACHES, default="cold", meaning="may compiled programs be reused"
    ),
    "league": ValueRule(
        choices=settings.LEAGUES, default="as_shipped", meaning="which comparisons the cell takes part in"
    ),
    "cpus": ValueRule(
        "cpus", 1, 1024, choices=("all",), default="all", meaning="CPUs that the processes are pinned to"
    ),
    "clocks": ValueRule(
        choices=settings.CLOCKS, default="free", meaning="gpu: set by the driver, or locked at the rated one"
    ),
    "autotune": ValueRule(
        choices=settings.AUTOTUNES,
        default="fresh",
        meaning="gpu: each process tunes kernels, only the first, or none",
    ),
    "freed_memory": ValueRule(
        choices=settings.FREED_MEMORY,
        default="returned",
        meaning="whether freed host memory goes back to the system",
    ),
    "page_cache": ValueRule(
        choices=settings.PAGE_CACHES,
        default="warm",
        meaning="pipeline: cold: the data set's files are evicted from the page cache before each measured epoch",
    ),
    "input_timers": ValueRule(
        "bool", default=False, meaning="pipeline: time waits and stages inside the process, for the stall analysis"
    ),
    "nodes": ValueRule(
        "int", 1, 1024, default=1, meaning="cluster: machines among which the workers are divided evenly"
    ),
    "devices": ValueRule(
        "int", 1, 1024, default=1, meaning="devices of one machine that train together, the batch divided"
    ),
    "distribution": ValueRule(
        choices=settings.DISTRIBUTIONS, default="data", meaning="devices: what is divided, the batch or the weights"
    ),
    "gradient_accumulation_steps": ValueRule(
        "int", 1, 10_000, default=1, meaning="steps whose gradients are averaged for one change of the weights"
    ),
    "remat": ValueRule(
        choices=settings.REMATS,
        default=settings.REMAT_OFF,
        meaning="what the backward pass computes again instead of keeping it: nothing, each layer, or activations",
    ),
    "implementation": ValueRule(
        choices=settings.IMPLEMENTATIONS,
        default=settings.KERAS,
        meaning="who computes: Keras, its step in a loop, without metrics, with a native optimizer, or native code",
    ),
    "env": ValueRule(
        "env", default="", meaning="variables of the environment; those of your own also need --allow-env NAME"
    ),
    "call": ValueRule(
        choices=settings.CALLS,
        default=settings.ON_BATCH,
        meaning="predict: how the model is called: a method, model(x), its compiled forward pass, or an exported file",
    ),
    "outputs": ValueRule(
        choices=settings.OUTPUTS,
        default=settings.ON_HOST,
        meaning="call: model or jit: where a call ends: outputs in the host's memory, or computed on the device",
    ),
    "torch_compile": ValueRule(
        "torch_compile",
        default="",
        meaning="torch: `mode`, `fullgraph` and `dynamic` of torch.compile, each one value or an axis",
    ),
    "xla_flags": ValueRule("xla_flags", default="", meaning="tensorflow, jax: flags of XLA, as in XLA_FLAGS"),
    "matmul_precision": ValueRule(
        choices=settings.MATMUL_PRECISIONS,
        default=settings.MATMUL_PRECISIONS[0],
        meaning="products of matrices in float32: as the backend does, exact, in TF32, or in bfloat16",
    ),
}

# One value for an entry; how often and how long a cell may run, and on which machines and GPUs. Not part of its
# identity.
LIMITS: dict[str, ValueRule] = {
    "repeats": ValueRule(
        "int",
        1,
        1000,
        choices=("auto",),
        default=5,
        meaning="processes run for each cell; auto: 5, then more until precision_target is met or the budget is spent",
    ),
    "precision_target": ValueRule(
        "float", 0.001, 1, default=0.03, meaning="auto: half-width of a comparison's 95 % interval that is enough"
    ),
    "timeout_s": ValueRule("float", 1, 86_400, default=300.0, meaning="seconds one process may take"),
    "machine": ValueRule("str", default="", meaning="only on machines with this type or name, such as n1-standard-16"),
    "gpus": ValueRule(
        "gpus",
        choices=(device_lists.ALL_GPUS,),
        default=device_lists.ALL_GPUS,
        meaning="only these GPUs; the list is one value, no axis",
    ),
    "gpu_model": ValueRule("str", default="", meaning="only on GPUs that have this in their name, such as H100"),
    "memory_gib": ValueRule(
        "float", 0, 1_000_000, default=0.0, meaning="only on machines with at least this much memory"
    ),
    "across_nodes": ValueRule(
        "bool", default=False, meaning="cluster: blocks on any machines that fit, not all on one"
    ),
    "parallel_devices": ValueRule(
        "bool", default=False, meaning="gpu: comparisons run at the same time on the GPUs of this machine, each on one"
    ),
    "across_gpus": ValueRule(
        "bool", default=False, meaning="as parallel_devices, but blocks on any equal GPUs that fit"
    ),
}

# One value for the full file.
FILE_RULES: dict[str, ValueRule] = {
    "budget": ValueRule("float", 1, 10_000_000, meaning="seconds after which a run adds no more repeats to auto cells"),
}

DEFAULTS: dict[str, ValueRule] = SETTINGS | LIMITS
TOP_KEYS = ("version", "defaults", "backends", "cells", "tasks", "python", *FILE_RULES)
ANY_BACKEND = ""  # names the environment of the backends that have none of their own
ENTRY_KEYS = ("workload", "params", "backends", "include", "exclude")
USER_PARAM = ValueRule("any")
ARGUMENTS = ValueRule("str")  # the words of a program's arguments, as a shell reads them
AS_WRITTEN = "as_written"
# How a program is measured, beside its arguments and its call.
PROGRAM_KEYS: dict[str, ValueRule] = {
    "before": ValueRule(
        choices=(AS_WRITTEN, settings.CUT_BEFORE), meaning="calls before the measured one: as written, or cut short"
    ),
    "most_steps": ValueRule(
        "int",
        1,
        1_000_000_000,
        choices=(settings.ALL_STEPS,),
        meaning="steps after which an epoch of fit is cut; by default as many as the time limit allows",
    ),
}


def call_problem(call: object) -> str | None:
    """Return why a value names no call of a program, or None. Which calls it makes is known only once it has run."""
    if not isinstance(call, bool) and isinstance(call, str | int) and CALL.fullmatch(str(call)):
        return None
    kinds = ", ".join(settings.OF_CALLS)
    near_text = near(settings.call_kind(call), settings.OF_CALLS) if isinstance(call, str) else ""
    return (
        f"must be the number of a call from 1 on, its kind ({kinds}) or both, as in fit:2, got {say(call)}{near_text}"
    )


def workload_name_problem(name: str) -> str | None:
    """Return why a name is not valid for a user's workload, or None."""
    if settings.is_script(name):
        return script_problem(name.removeprefix(settings.SCRIPT))
    if len(name) > MAX_TEXT or not USER_WORKLOAD.fullmatch(name):
        return f"must be a workload of the catalog or package.module:function, got {say(name)}"
    return None


def script_problem(path: object) -> str | None:
    """Return why a value is not the path of a program, or None."""
    if isinstance(path, str) and SCRIPT_PATH.fullmatch(path):
        return None
    return f"must be the path of a program, such as train.py, in the matrix file's folder, got {say(path)}"

"""Texts of matrix files: each is a Matrix with its cells, or a MatrixError whose lines name file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from keras_matrix.runner.errors import MatrixError
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.catalog import CatalogWorkload
from keras_matrix.runner.matrix.grammar import FILE_RULES, LIMITS, SETTINGS, ValueRule
from keras_matrix.runner.matrix.reader import expand, parse
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import Check, Target
from tests.reliability.fuzz.targets import tasks

CATALOG = catalog.load()
BACKENDS = ["tensorflow", "jax", "torch"]
LONGEST_AXIS = 4
MOST_CELLS = 1000  # the time of a larger matrix is that of its cells, not of its text
# Settings that fit each other and every workload; the others are refused in most combinations.
INDEPENDENT = ("batch_size", "samples", "epochs", "seed", "threads", "cpus", "compile_cache", "league", "precision")
PROBLEM = re.compile(r"matrix\.yaml:\d+: .+")
HOSTILE = (
    *(
        "&a ",
        "*a",
        "!!python/object:os.system ",
        "<<: ",
        "? ",
        "- ",
        "|\n",
        ">-\n ",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "#",
    ),
    *(
        "\t",
        "\r\n",
        "\0",
        "\x85",
        "\u2028",
        "\ufeff",
        "'",
        '"',
        "{",
        "}",
        "[",
        "]",
        ": ",
        "@",
        "`",
        "~",
        "1e400",
        "0o17",
    ),
    *(
        "[" * 3000,
        "{a: " * 3000,
        "9" * 6000,
        "&x [*x, *x]",
        "a: 1\na: 2\n",
        "  " * 500,
        "x" * 5000,
        "16:30",
        ".inf",
        "no",
    ),
)


@cache  # a strategy takes longer to make than its values
def values_of(rule: ValueRule) -> st.SearchStrategy[Any]:
    """Return values that follow a rule."""
    found: list[st.SearchStrategy[Any]] = [st.sampled_from(rule.choices)] if rule.choices else []
    low, high = int(rule.minimum or 0), int(min(rule.maximum or 64, 64))
    if rule.kind in ("int", "float", "cpus"):
        found.append(st.integers(low, max(low, high)))
    if rule.kind == "float":
        found.append(st.floats(max(rule.minimum or 0.0, 0.01), rule.maximum or 10.0))
    if rule.kind == "cpus":
        found.append(st.sampled_from(["0-3", "1,0", "3-3,5"]))
    if rule.kind == "gpus":
        found.append(st.sampled_from([[0, 1], 0, "0,1", ["GPU-12345678-1234-1234-1234-123456789012"]]))
    if rule.kind == "bool":
        found.append(st.booleans())
    if rule.kind in ("str", "any"):
        found.append(st.sampled_from(["H100", "n1-standard-16", "ä", "a b"]))
    return st.one_of(found)


@cache
def axis(rule: ValueRule) -> st.SearchStrategy[Any]:
    """Return a value, or a list of different values."""
    one = values_of(rule)
    return one if rule.kind == "gpus" else one | st.lists(one, min_size=1, max_size=LONGEST_AXIS, unique_by=repr)


@st.composite
def some_of(draw: st.DrawFn, rules: dict[str, ValueRule], most: int = 3) -> dict[str, Any]:
    """Return values of up to three of the rules, or an empty mapping if there are none."""
    names = draw(st.lists(st.sampled_from(sorted(rules)), max_size=most, unique=True)) if rules else []
    return {name: draw(axis(rules[name])) for name in names}


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    """Return an entry of `cells`."""
    name = draw(st.sampled_from([*sorted(CATALOG.workloads), "my_package.my_module:build"]))
    workload = CATALOG.workloads.get(name)
    own = draw(some_of(params_of(workload), 2))
    entry = {"workload": name} | draw(some_of({key: SETTINGS[key] for key in INDEPENDENT}))
    entry |= {"params": own} if workload is None else own
    rarely = draw(st.integers(0, 15))
    if rarely == 0:
        entry |= draw(some_of(SETTINGS, 2))
    elif rarely == 1:
        entry |= {key: value for key, value in draw(some_of(LIMITS, 2)).items() if not isinstance(value, list)}
    elif rarely == 2:
        entry["backends"] = draw(st.lists(st.sampled_from(BACKENDS), min_size=1, max_size=3, unique=True))
    elif rarely == 3:
        entry["include"] = [draw(some_of({key: SETTINGS[key] for key in INDEPENDENT}, 2)) | {"seed": [77, 78]}]
    elif rarely == 4:
        entry |= {"batch_size": [1, 2, 3], "exclude": [{"batch_size": draw(st.integers(1, 3))}, {"backend": "jax"}]}
    elif rarely == 5:
        entry["trace"] = draw(st.booleans() | st.fixed_dictionaries({"epochs": st.sampled_from([2, [2, 3], 0])}))
    elif rarely == 6:
        entry["stalls"] = draw(st.booleans())
    return entry


def params_of(workload: CatalogWorkload | None) -> dict[str, ValueRule]:
    """Return the rules of a workload's parameters; of a user's own, some names."""
    return {"width": ValueRule("any"), "depth": ValueRule("any")} if workload is None else dict(workload.params)


@st.composite
def matrices(draw: st.DrawFn) -> dict[str, Any]:
    """Return a matrix as plain values."""
    matrix: dict[str, Any] = {"version": 1}
    if draw(st.booleans()):
        rules = {key: SETTINGS[key] for key in INDEPENDENT} | LIMITS
        matrix["defaults"] = {key: value for key, value in draw(some_of(rules)).items() if not isinstance(value, list)}
    if draw(st.integers(0, 3)) == 0:
        matrix["budget"] = draw(values_of(FILE_RULES["budget"]))
    if draw(st.integers(0, 3)):
        matrix["backends"] = draw(st.lists(st.sampled_from(BACKENDS), min_size=1, max_size=3, unique=True))
        found = draw(st.lists(entries(), min_size=1, max_size=3))
        matrix["cells"] = [entry | {"discard": number} for number, entry in enumerate(found)]  # otherwise often equal
    else:
        matrix["tasks"] = [task | {"task": f"{task['task']} {n}"} for n, task in enumerate(draw(tasks.TASKS))]
    return matrix


def yaml_text(matrix: dict[str, Any], block: bool) -> str:
    """Return a matrix in YAML: one line for each key, with values in JSON, which is YAML too."""
    lines = []
    for key, value in matrix.items():
        if block and isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            items = ("\n    ".join(f"{k}: {json.dumps(v)}" for k, v in item.items()) or "{}" for item in value)
            lines += [f"{key}:", *(f"  - {text}" for text in items)]
        else:
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Return the text of a matrix: usually valid, else with an odd value, a piece of YAML, or changed bytes."""
    kind = draw(st.integers(0, 9))
    found = draw(documents.changed([draw(matrices())])) if kind == 0 else draw(matrices())
    if not isinstance(found, dict):
        return documents.written(found)
    text = yaml_text(found, draw(st.booleans()))
    for word, raw in documents.RAW.items() if kind == 0 else ():
        text = text.replace(f'"{word}"', raw)
    if kind == 1:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(HOSTILE)) + text[at:]
    data = text.encode("utf-8", "surrogatepass")
    return draw(documents.damaged_bytes(data, 10)) if kind == 2 else data


def check(data: bytes) -> bool:
    """Read one matrix and expand it."""
    try:
        found = expand(parse(Path("matrix.yaml"), data, CATALOG), limit=MOST_CELLS)
    except MatrixError as error:
        assert error.problems != []
        assert [
            problem for problem in error.problems if not (PROBLEM.fullmatch(problem) and problem.isprintable())
        ] == []
        return False
    assert found != []
    return True


@contextmanager
def checking(_: Path) -> Iterator[Check]:
    yield check


TARGET = Target(
    texts(),
    checking,
    share=130,
    modules=(
        "runner/matrix/[!jops]*.py",
        "runner/matrix/strict_yaml.py",
        "runner/matrix/instrument_keys.py",
        "runner/matrix/task_reader.py",
    ),
    limit_ms=100.0,
)

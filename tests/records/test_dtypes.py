"""The table of dtypes agrees with NumPy and with JAX's extension types, and no other module has a second one."""

from __future__ import annotations

import ast
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from keras_matrix.records.dtypes import COMPUTED_IN, ELEMENT_BYTES, variable_bytes
from keras_matrix.runner.matrix.grammar import SETTINGS

ROOT = Path(__file__).parents[2]
ROOMS = ("records", "models", "analysis", "uploader", "dashboards", "runner", "ci", "lab")


def size_of(name: str) -> int:
    return np.dtype(getattr(ml_dtypes, name, name)).itemsize


@pytest.mark.parametrize("name", [name for name in ELEMENT_BYTES if name != "tf32"])
def test_bytes_of_an_element_are_those_of_numpy(name: str) -> None:
    assert ELEMENT_BYTES[name] == size_of(name)


def test_every_policy_of_a_matrix_has_a_precision_and_bytes_of_its_variables() -> None:
    assert set(SETTINGS["precision"].choices or ()) <= set(COMPUTED_IN)
    assert {policy: variable_bytes(policy) for policy in COMPUTED_IN} == {
        "float32": 4, "float64": 8, "bfloat16": 2, "mixed_bfloat16": 4, "mixed_float16": 4,
    }  # fmt: skip


NAMES = ("float32", "float64", "bfloat16", "float16")


def tables_of(tree: ast.AST) -> list[ast.Dict]:
    """Return the dictionaries that give a whole number for the name of a floating-point dtype."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value in NAMES
        if isinstance(value, ast.Constant) and type(value.value) is int
    ]


def test_the_bytes_of_a_dtype_stand_in_one_module() -> None:
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(files) > 550
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    naming = {path: text for path, text in texts.items() if any(name in text for name in NAMES)}
    assert len(naming) > 50
    found = {path for path, text in naming.items() if tables_of(ast.parse(text))}
    assert found == {"records/dtypes.py"}

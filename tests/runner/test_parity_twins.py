"""Real twins on real backends: equal work agrees, and each planted fault is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from records import parity as kept
from runner.cli.main import main

pytestmark = pytest.mark.process

UNEQUAL = "tests.workloads.unequal:"
PAIR = ("--backend", "jax", "--backend", "torch", "--steps", "3")


def compared(folder: Path, *arguments: str) -> tuple[int, dict[str, kept.ParityRecord]]:
    code = main(["parity", "--results", str(folder / "results"), *arguments])
    records, problems = kept.load(folder / "results")
    assert problems == []
    return code, {record.workload.removeprefix(UNEQUAL): record for record in records}


def test_two_workloads_agree_on_three_backends(tmp_path: Path) -> None:
    code, records = compared(tmp_path, "bert", "lstm", "--steps", "5")
    assert {name: [pair.findings for pair in record.pairs] for name, record in records.items()} == {
        "bert": [[], [], []],
        "lstm": [[], [], []],
    }
    assert code == 0
    assert any("dropout" in name for name in records["bert"].switched_off)
    assert any("key/bias" in path for path in records["bert"].zero_gradients)


FAULTS = {
    "equal": None,
    "epsilon": "the output of layer sequential/normal",
    "transposed": "the output of layer sequential/turned",
    "scaled_gradient": "the gradient of sequential/second/bias; every layer's output agrees",
    "learning_rate": "the optimiser's step on",
    "loss": "the loss; every layer's output agrees",
    "dropout": None,
}


def test_each_planted_fault_is_found_and_named(tmp_path: Path) -> None:
    code, records = compared(tmp_path, *(UNEQUAL + name for name in FAULTS), *PAIR, "--precision", "float64")
    located = {name: record.pairs[0].located for name, record in records.items()}
    assert code == 1
    assert {name: record.agrees for name, record in records.items()} == {
        n: where is None for n, where in FAULTS.items()
    }
    assert {n: where and where[: len(FAULTS[n] or "")] for n, where in located.items()} == FAULTS


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    names = ("shape", "noisy", "failing")
    _, records = compared(tmp_path, *(UNEQUAL + name for name in names), *PAIR, "--precision", "float32")
    assert "weights" in records["shape"].failures["torch float32"]
    assert "draws random numbers" in records["noisy"].unsupported["jax weights"]
    assert "the workload says no" in records["failing"].failures["jax weights"]
    assert [record.pairs for record in records.values()] == [[], [], []]

"""Real parity processes: equal work agrees, and each injected fault is found and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.records.instruments import parity as parity_files
from keras_matrix.runner.cli.main import main

pytestmark = pytest.mark.process

UNEQUAL = "tests.workloads.unequal:"
PAIR = ("--backend", "jax", "--backend", "torch", "--steps", "2")


def compared(folder: Path, *arguments: str) -> tuple[int, dict[str, parity_files.ParityRecord]]:
    code = main(["parity", "--results", str(folder / "results"), *arguments])
    records, problems = parity_files.load(folder / "results")
    assert problems == []
    return code, {record.workload.removeprefix(UNEQUAL): record for record in records}


@pytest.mark.nightly  # `runner parity` is the last stage of ci/nightly, too
def test_two_workloads_agree_on_three_backends(tmp_path: Path) -> None:
    code, records = compared(tmp_path, "mnist_mlp", "gru", "--steps", "4")
    assert {name: [pair.findings for pair in record.pairs] for name, record in records.items()} == {
        "mnist_mlp": [[], [], []],
        "gru": [[], [], []],
    }
    assert code == 0
    assert records["mnist_mlp"].switched_off == ["dropout", "dropout_1", "dropout_2", "dropout_3"]
    assert sorted(records["gru"].versions) == ["jax", "tensorflow", "torch"]


FAULTS = {
    "epsilon": "the output of layer sequential/normal",
    "transposed": "the output of layer sequential/turned",
    "scaled_gradient": "the gradient of sequential/second/bias; every layer's output agrees",
    "learning_rate": "the optimiser's step on",
    "initialiser": "the initialiser of sequential/wide/kernel",
    "momentum": "the statistic sequential/moving/moving_",
    "bias": "the gradient of sequential/biased/bias; every layer's output agrees",
    "loss": "the loss; every layer's output agrees",
    "reduction": "the loss; every layer's output agrees",
    "dropout": None,
}


@pytest.mark.nightly
def test_injected_faults_are_found_and_incomparable_outputs_give_a_reason(tmp_path: Path) -> None:
    others = ("shape", "noisy", "failing")
    names = [UNEQUAL + name for name in (*FAULTS, *others)]
    code, records = compared(tmp_path, *names, *PAIR, "--precision", "float64")
    assert code == 1
    assert {name: record.agrees for name, record in records.items() if name in FAULTS} == {
        name: where is None for name, where in FAULTS.items()
    }
    for name, where in FAULTS.items():
        located = records[name].pairs[0].located
        assert where == (located and located[: len(where or "")])
    assert "; the first that differs is number" in records["shape"].failures["torch float64"]
    assert "draws random numbers" in records["noisy"].unsupported["jax weights"]
    assert "the workload says no" in records["failing"].failures["jax weights"]
    assert [records[name].pairs for name in others] == [[], [], []]


DOCUMENTED = "tests.workloads.documented:"
EXAMPLE = "docs.examples.my_workload:build"


def test_documented_plugins_are_explained_and_a_defect_in_one_is_not(tmp_path: Path) -> None:
    names = [EXAMPLE, *(DOCUMENTED + name for name in ("logits", "probabilities", "fixed_dtype", "defective"))]
    flags = ("--backend", "tensorflow", "--backend", "torch", "--steps", "2", "--precision", "float64")
    code, records = compared(tmp_path, *names, *flags)
    assert code == 1
    assert {name.removeprefix(DOCUMENTED): record.agrees for name, record in records.items()} == {
        EXAMPLE: True,
        "logits": True,
        "probabilities": True,
        "fixed_dtype": False,
        "defective": False,
    }
    (finding,) = records[EXAMPLE].pairs[0].findings
    assert (finding.figure, finding.value) == ("update", pytest.approx(6.7e-6, rel=0.05))
    located = {name.removeprefix(DOCUMENTED): record.pairs[0].located for name, record in records.items()}
    assert located["fixed_dtype"] == "the output of layer activation"
    assert str(located["defective"]).startswith("the optimiser's step on sequential/dense")

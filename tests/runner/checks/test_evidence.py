"""The shipped evidence that the backends do the same work is complete, agrees, and is of the locked versions.

If a test fails here because a version or a workload has changed: run `ci/evidence WORKLOAD...`, and commit the result.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from keras_matrix.analysis import proofs
from keras_matrix.records import replicas
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.fc.spec import MODES, Parallelism
from keras_matrix.records.instruments import parity
from keras_matrix.records.instruments.parity import ParityRecord
from keras_matrix.records.run_files import EVIDENCE, shipped
from keras_matrix.runner.matrix import catalog
from tests.scripts import script

ROOT = Path(__file__).parents[3]
evidence = script("evidence")


def locked(package: str) -> str:
    """Return the version of a package in the locks of the CPU environment, for the Python of the proofs."""
    texts = [(ROOT / f"locks/{name}.txt").read_text() for name in ("cpu", "torch-build-cpu")]
    return str(script("check_locks").versions("\n".join(texts), "3.11")[package])


VERSIONS = {
    "keras": locked("keras"),
    "tensorflow": locked("tensorflow-cpu"),
    "jax": locked("jax"),
    "torch": locked("torch"),
}


def record_of(workload: str) -> ParityRecord:
    (found,) = [record for record in shipped()[0] if record.workload == workload]
    return found


def test_every_file_is_valid() -> None:
    assert parity.load(EVIDENCE)[1] == []


@pytest.mark.parametrize("workload", sorted(catalog.load().workloads))
def test_every_workload_agrees_on_every_two_backends_at_the_locked_versions(workload: str) -> None:
    record = record_of(workload)
    assert record.agrees, f"ci/evidence {workload}"
    assert [tuple(pair.backends) for pair in record.pairs] == list(combinations(TRAINING_BACKENDS, 2))
    for backend in TRAINING_BACKENDS:
        found = {name: record.versions[backend][name] for name in ("keras", backend)}
        assert found == {name: VERSIONS[name] for name in ("keras", backend)}, f"stale: ci/evidence {workload}"
    assert record.machine is not None
    assert record.started_at


def test_proofs_of_several_devices_are_equal_and_of_the_locked_versions() -> None:
    found, problems = replicas.load_proofs(EVIDENCE)
    assert problems == []
    assert {one.workload for one in found} >= {"mnist_mlp", "cifar10_cnn", "lstm", "fc", "bert"}
    for one in found:
        assert proofs.is_proved(one), f"ci/evidence {one.workload}"
        assert ([*one.backends], one.devices) == ([*TRAINING_BACKENDS], 2)
        for backend, own in one.backends.items():
            versions = {name: own.versions[name] for name in ("keras", backend)}
            expected = {name: VERSIONS[name] for name in ("keras", backend)}
            assert versions == expected, f"stale: ci/evidence {one.workload}"


@pytest.mark.parametrize("workload", sorted(evidence.families()))
def test_no_workload_has_changed_since_its_parity_was_compared(workload: str) -> None:
    hashes = json.loads(evidence.SOURCES.read_bytes())
    family = evidence.families()[workload]
    assert hashes[workload] == evidence.source_hash(family), f"models/{family}.py has changed: ci/evidence {workload}"


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_every_native_mode_is_proved_at_the_locked_version(backend: str) -> None:
    own = [proof for proof in shipped()[1] if proof.backend == backend]
    modes = {(mode.name, precision) for mode in MODES.values() if mode.native for precision in ("float64", "float32")}
    assert {(proof.mode, proof.precision) for proof in own} == modes
    assert {(proof.version, proof.failure) for proof in own} == {(VERSIONS[backend], None)}, "stale: ci/evidence fc"
    assert all(proof.machine and proof.started_at for proof in own)
    alone = {mode.name for mode in MODES.values() if mode.kind is Parallelism.SINGLE}
    assert {(*proof.workers,) for proof in own if proof.mode not in alone} == {(1, 2, 3, 4)}

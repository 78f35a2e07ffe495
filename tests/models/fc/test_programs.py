"""The programs of the FC modes on real backends: the proof, without autodiff, and with lost workers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.proofs import proof_problem
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.fc.proof import Proof, ProofOrder
from keras_matrix.records.fc.spec import DIVIDERS, MODES, OVERLAPPING, FcProblem, Parallelism
from keras_matrix.runner.checks.proofs import ProofRequest, prove_modes
from keras_matrix.runner.executors.process.probe import ProcessProbe
from tests.imported import ran

HERE = Path(__file__).parent


@cache
def answered(script: str, backend: str, *arguments: str) -> dict[str, Any]:
    done = ran(backend, HERE / script, *arguments)
    assert done.returncode == 0, done.stderr
    return {key: value for line in done.stdout.splitlines() for key, value in json.loads(line).items()}


@pytest.mark.one_backend("jax")
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.parametrize(
    "request_",
    [ProofRequest(workers=(1, 3), precisions=("float64",)), pytest.param(ProofRequest(), marks=pytest.mark.nightly)],
    ids=["1 and 3 workers", "all"],
)
def test_every_mode_computes_what_plain_numpy_does_and_communicates_what_the_formula_says(
    backend: str, request_: ProofRequest
) -> None:
    proofs = proved(backend, request_.tasks())
    assert {proof.problem.mode for proof in proofs} == {mode.name for mode in MODES.values() if mode.native}
    assert {proof.problem.workers for proof in proofs} == set(request_.workers)
    assert [(proof.problem, fault) for proof in proofs if (fault := proof_problem(proof))] == []
    silent = [p for p in proofs if p.problem.mode == "fc_phy" and p.problem.shared_ratio == 0]
    assert {p.parallel.traffic.calls for p in silent} == {0}
    apart = [p for p in proofs if (p.problem.mode, p.problem.overlap) == ("fc_data", "off")]
    assert {p.parallel.traffic.calls for p in apart} == {6}  # a sum for each layer


def proved(backend: str, problems: list[FcProblem]) -> Sequence[Proof]:
    """What a backend's workers found of these problems."""
    (answer,), refused = prove_modes(ProcessProbe(), [backend], ProofOrder(problems), lambda line: None)
    assert refused == {}
    return answer.proofs


def other_tasks(**changes: Any) -> list[FcProblem]:
    """Every mode that divides the work, with every partition."""
    sizes = FcProblem(level=5, weight_size=48, batch_size=48, **changes)
    shared = {"fc_phy": {"shared_ratio": 0.3}}
    modes = [mode.name for mode in MODES.values() if mode.kind is not Parallelism.SINGLE]
    problems = [sizes.changed(mode=mode, **shared.get(mode, {})) for mode in modes]
    return [*problems, *(sizes.changed(mode=m, partition=name) for name, (_, own) in DIVIDERS.items() for m in own)]


@pytest.mark.nightly
@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_mean_reduction_divides_sums_in_every_mode(backend: str) -> None:
    sizes = FcProblem(workers=2, level=3, weight_size=16, batch_size=16, precision="float64", reduce="mean")
    late = [sizes.changed(mode=mode, overlap="off") for mode in OVERLAPPING]
    divided = [sizes.changed(mode="fc_data", partition=name) for name, (own, _) in DIVIDERS.items() if own == backend]
    proofs = proved(backend, [*late, *(problem for problem in divided if backend != "torch")])
    assert len(proofs) == (2 if backend == "torch" else 3)
    assert [(proof.problem, fault) for proof in proofs if (fault := proof_problem(proof))] == []


@pytest.mark.process
def test_jax_workers_take_more_steps_than_xla_keeps_in_flight() -> None:
    modes = ["fc_data", "fc_data_manual", "fc_model", "fc_zero"]
    assert answered("far_ahead.py", "jax", *modes) == dict.fromkeys(modes, True)


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_single_worker_in_the_cells_process_computes_in_float64_on_request(backend: str) -> None:
    assert answered("alone.py", backend)["error"] < 1e-10


@pytest.mark.nightly
@pytest.mark.one_backend("tensorflow")
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_in_bfloat16_layout_and_bytes_are_as_the_formulas_say(backend: str) -> None:
    proofs = proved(backend, other_tasks(workers=2, precision="bfloat16"))
    assert [(proof.problem, proof.layout_problem) for proof in proofs if proof.layout_problem] == []
    # Three digits, of which six layers leave two: a sum or a gradient that is missing would be off by half or all.
    assert max(proof.gradient_error for proof in proofs if proof.gradient_error is not None) < 0.2


@pytest.mark.xdist_group("by hand")
@pytest.mark.process
def test_manual_modes_need_no_automatic_differentiation() -> None:
    found = answered("by_hand.py", "numpy")["errors"]
    assert set(found) == {mode.name for mode in MODES.values() if mode.manual} | {"three stages"}
    assert max(found.values()) < 1e-5


@pytest.mark.xdist_group("by hand")
@pytest.mark.process
def test_gradients_by_hand_are_summed_as_they_are_made_or_after_all_of_them() -> None:
    assert answered("by_hand.py", "numpy")["made"] == {"on": 1, "off": 4}


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
@pytest.mark.parametrize("mode", ["fc_data", "fc_model_manual"])
def test_collectives_are_watched_on_every_backend(backend: str, mode: str) -> None:
    found = answered("watched.py", backend, mode)
    times = found["found"]
    assert times["method"] == ("timed" if backend == "torch" else "profiled")
    assert [len(times["step_times_s"]), len(times["compute_times_s"])] == [3, 3]
    assert all(seconds > 0 for seconds in (*times["step_times_s"], *times["compute_times_s"]))
    # What lies inside collectives is part of the step.
    assert all(c < s for c, s in zip(times["compute_times_s"], times["step_times_s"], strict=True))


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_without_overlap_no_sum_can_begin_before_all_gradients_are_made(backend: str) -> None:
    found = answered("overlaps.py", backend)
    may = {f"{mode} {overlap}": overlap == "on" for mode in OVERLAPPING for overlap in ("on", "off")}
    # XLA makes one sum of all, which waits for the last gradient.
    assert found == may | ({"fc_data on": False} if backend == "jax" else {})


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_observed_collectives_are_means_over_workers_without_overlap(backend: str) -> None:
    wanted = {
        "jax": {"inside_us": 9},  # of 12 us on one device, whose two instructions overlap, and 6 us on the other
        "tensorflow": {"inside_us": 13},  # 10 us for which both workers wait, and 6 of one of them
        "torch": {"in another thread": False, "buckets waited for": 1},
    }
    assert answered("seen.py", backend) == wanted[backend]


@pytest.mark.alone
@pytest.mark.process
def test_each_worker_process_has_its_share_of_the_cpus_and_as_many_threads() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers share one CPU here")
    found = answered("shares.py", "torch")
    share = len(found["whole"]) // 2
    assert found["cpus"] == [found["whole"][:share], found["whole"][share : 2 * share]]
    assert found["threads"] == [share, share]


@pytest.mark.nightly(why="every worker imports its backend")
@pytest.mark.process
def test_workers_in_new_interpreters_compute_the_same_as_forked_ones() -> None:
    found = answered("start_methods.py", "torch")
    modes = {mode.name for mode in MODES.values() if mode.kind is not Parallelism.SINGLE}
    assert {name.split()[0] for name in found["equal"]} == modes
    assert [name for name, equal in found["equal"].items() if not equal] == []
    # Only a new interpreter configures its backend itself.
    assert (found["configured"], found["processes"]) == ("spawn", 2)


@pytest.mark.process
def test_each_worker_of_tensorflow_multiplies_on_its_own_device() -> None:
    # Of three layers: three products forward, three for the weights' gradients, two for the inputs'.
    forward, both = 3, 3 + 3 + 2
    alike = {
        mode.name: both if mode.trains else forward for mode in MODES.values() if mode.kind is not Parallelism.SINGLE
    }
    wanted = {name: {"device:CPU:0": count, "device:CPU:1": count} for name, count in alike.items()}
    # Of four micro-batches: the first stage has one layer, whose input's gradient nobody needs; the last has two.
    wanted["fc_pipeline"] = {"device:CPU:0": 4 * 2, "device:CPU:1": 4 * 6}
    assert answered("placed.py", "tensorflow") == wanted | {"mirrored_strategy": wanted["fc_data"]}


@pytest.mark.one_backend
@pytest.mark.process
@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_a_mode_without_collectives_has_nothing_to_watch(backend: str) -> None:
    assert answered("watched.py", backend, "fc_data_ff") == {"found": None}


@pytest.mark.process
@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        ("killed", "WorkerDied", "rank 1 of 2 was ended by signal 9 (SIGKILL) before its work was done"),
        ("raising", "WorkerFailed", "rank 1 of 2: ArithmeticError: no more; the other workers were ended"),
        ("absent", "WorkerFailed", "rank 0 of 2: NotMet: the 2 workers did not all connect within 2 s"),
        pytest.param(
            "ports",
            "WorkerFailed",
            "PortInUse: no port was free on lo for a worker; end processes with open ports (ss -tan)",
            marks=pytest.mark.nightly,
        ),
        ("elsewhere", "WorkerFailed", "network namespace kbm-net-never-0: cannot be joined: No such file or directory"),
    ],
)
def test_when_a_worker_is_lost_the_others_end_and_the_message_names_it(loss: str, kind: str, message: str) -> None:
    found = answered("lost_workers.py", "torch", loss)
    assert (found["kind"], message in found["message"]) == (kind, True)
    assert found["took_s"] < (7.0 if loss == "absent" else 5.0)
    assert found["left"] == []


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.process
def test_a_step_may_take_longer_than_the_workers_had_for_meeting() -> None:
    assert answered("lost_workers.py", "torch", "slow")["step_time_s"] > 3.5


@pytest.mark.process
@pytest.mark.parametrize("way", ["orphaned", pytest.param("orphaned_interpreters", marks=pytest.mark.nightly)])
def test_workers_amid_their_steps_end_with_the_process_that_started_them(way: str) -> None:
    found = answered("lost_workers.py", "torch", way)
    assert found["left"] == [False, False]
    assert found["took_s"] < 5.0

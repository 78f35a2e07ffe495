"""`runner parity` with synthetic processes: the processes that it starts, its conclusions, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.instruments import parity as parity_files
from keras_matrix.records.instruments.parity import Deviation, Facts, Operation, ParityOutput, Sketch, Weight
from keras_matrix.runner.cell.job import ARRAYS_NAME, WEIGHTS_NAME, Job, write_result
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.matrix.catalog import SMALL, load
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor, crash
from tests.golden import Golden
from tests.transcripts import Transcript

SHA256 = "a" * 64
FLOAT32_ALONE = "precision: must be float32, got float64"
ADAM = Facts("Adam", {"beta_1": 0.9, "beta_2": 0.999})
Numbers = Callable[[Job], float]


def ones(job: Job) -> float:
    return 1.0


def outputs(
    gradient: Numbers = ones,
    losses: Numbers = ones,
    output: Numbers = ones,
    sha256: str = SHA256,
    update: Numbers | None = None,
    facts: Facts = ADAM,
) -> Any:
    """Return a behaviour: a model of two weights, its arrays multiplied by what these functions say of a job.

    It reports `facts`; updates are multiplied as gradients are, where `update` is not given.
    """
    factors = {"gradient": gradient, "update": update or gradient}

    def behave(job: Job) -> Outcome:
        assert job.parity is not None
        folder = Path(job.folder)
        weights = [Weight("m/kernel", [2], True, 1.0), Weight("m/bias", [2], True, 1.0)]
        trace = ParityOutput(job.nonce, SHA256 if job.parity.role == "weights" else sha256, weights, [losses(job)] * 3)
        if job.parity.role == "weights":
            np.savez(folder / WEIGHTS_NAME, np.ones(2))
        elif job.parity.role == "train":
            values = np.array([1.0, 2.0])
            arrays = {f"{kind}.{i}": values * factor(job) for kind, factor in factors.items() for i in range(2)}
            np.savez(folder / ARRAYS_NAME, **arrays)
            trace = replace(trace, facts=facts)
        elif job.parity.role == "predict":
            np.savez(folder / ARRAYS_NAME, **{"output.0": np.array([1.0, 2.0]) * output(job)})
            trace = replace(trace, losses=[], outputs=1)
        else:
            sketches = [Sketch("m/first", 2, 1.0, [0.5]), Sketch("m/second", 2, 1.0, [0.5 * output(job)])]
            trace = ParityOutput(job.nonce, sha256, weights, sketches=sketches)
        job.trace_path.write_text(dumps(trace), encoding="utf-8")
        return Outcome(exit_code=0)

    return behave


def on(backend: str, value: float) -> Numbers:
    return lambda job: value if job.settings.backend == backend else 1.0


class Ran:
    """A `runner parity` with synthetic processes."""

    def __init__(self, tmp_path: Path, *flags: str, workload: str = "mnist_mlp", **fake: Any) -> None:
        behaviours = {workload: fake.pop("behaviour", outputs())}
        self.executor = FakeExecutor(behaviours=behaviours, **fake)
        self.results = tmp_path / "results"
        arguments = ["parity", workload, "--results", str(self.results), *flags]
        self.code = main(arguments, Seams(executor=self.executor))

    def record(self) -> parity_files.ParityRecord:
        ((record,), problems) = parity_files.load(self.results)
        assert problems == []
        return record


def test_agreeing_parity_processes_are_stored(tmp_path: Path) -> None:
    ran = Ran(tmp_path)
    record = ran.record()
    assert (ran.code, record.agrees, record.weights_sha256) == (0, True, SHA256)
    assert [pair.backends for pair in record.pairs] == [
        ["tensorflow", "jax"],
        ["tensorflow", "torch"],
        ["jax", "torch"],
    ]


@pytest.mark.parametrize("name", ["feed", "params.feed"])
def test_parameter_named_like_a_setting_is_set_by_both_of_its_names(tmp_path: Path, name: str) -> None:
    """Mutation: `params.feed`, as other commands and titles call it, is another parameter."""
    ran = Ran(tmp_path, "--set", f"{name}=2", workload="my_models:build")
    assert ran.record().params == {"feed": 2}


def test_weights_are_made_once_and_every_backend_trains_them_at_both_precisions(tmp_path: Path) -> None:
    ran = Ran(tmp_path)
    expected = [
        (job.parity.role, job.settings.backend, job.settings.precision) for job in ran.executor.jobs if job.parity
    ]
    trained = [("train", b, p) for b in ("tensorflow", "jax", "torch") for p in ("float64", "float32")]
    assert expected == [("weights", "tensorflow", "float32"), *trained]
    assert {job.settings.threads for job in ran.executor.jobs} == {1}
    assert {(job.settings.precision, job.steps) for job in ran.executor.jobs} == {("float64", 3), ("float32", 20)}
    assert {job.settings.params["image_size"] for job in ran.executor.jobs} == {8}
    assert len({job.parity.weights for job in ran.executor.jobs if job.parity and job.parity.role == "train"}) == 1


def test_scaled_gradient_is_a_deviation_with_exit_code_1(tmp_path: Path) -> None:
    ran = Ran(tmp_path, behaviour=outputs(gradient=on("jax", 1.001)))
    assert ran.code == 1
    assert [pair.agrees for pair in ran.record().pairs] == [False, True, False]
    assert ran.record().pairs[0].located == "the gradient of m/bias; every layer's output agrees"


def test_layer_whose_output_differs_is_named(tmp_path: Path) -> None:
    ran = Ran(tmp_path, behaviour=outputs(losses=on("torch", 1.1), output=on("torch", 1.1)))
    located = {tuple(pair.backends): pair.located for pair in ran.record().pairs}
    assert located[("tensorflow", "torch")] == "the output of layer m/second"
    assert located[("tensorflow", "jax")] is None


@pytest.mark.parametrize(
    ("more_threads", "code", "expected"), [(1.001, 0, ["torch"]), (1.0, 1, ["torch", "tensorflow", "jax"])]
)
def test_diverging_training_is_repeated_with_two_threads_until_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more_threads: float, code: int, expected: list[str]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})

    def losses(job: Job) -> float:
        if job.settings.precision == "float64":
            return 1.0
        return on("torch", 1.002)(job) * (more_threads if job.settings.threads == 2 else 1.0)

    monkeypatch.setitem(parity_limits()["float32"], "loss", 1.0)
    ran = Ran(tmp_path, behaviour=outputs(losses=losses))
    assert ran.code == code
    assert ran.record().own == pytest.approx(dict.fromkeys(expected, more_threads - 1), rel=0.01)


@pytest.mark.parametrize(("moved", "code", "expected"), [(1.02, 0, ["torch"]), (1.001, 1, ["torch", "jax"])])
def test_deviating_float32_gradients_are_compared_with_nudged_weights(
    tmp_path: Path, moved: float, code: int, expected: list[str]
) -> None:
    def gradient(job: Job) -> float:
        if job.settings.precision == "float64":
            return 1.0
        assert job.parity is not None
        own = {"torch": 1.03, "jax": 1.005}[job.settings.backend]
        return own * (moved if job.parity.nudge is not None else 1.0)

    flags = ("--backend", "torch", "--backend", "jax")
    ran = Ran(tmp_path, *flags, behaviour=outputs(gradient=gradient))
    assert ran.code == code
    assert list(ran.record().nudged) == expected
    nudged = [job for job in ran.executor.jobs if job.parity and job.parity.nudge is not None]
    assert {(job.settings.precision, job.steps) for job in nudged} == {("float32", 2)}
    assert len({job.parity.nudge for job in nudged if job.parity}) == 3


def rounded_betas(job: Job) -> float:
    """Return TensorFlow's factor of Adam's step with rounded betas in float64; a corrected process has factor 1."""
    assert job.parity is not None
    inexact = job.settings.backend == "tensorflow" and job.settings.precision == "float64"
    return 1 - 6.7e-6 if inexact and Operation.PYTHON_FLOATS not in job.parity.correct else 1.0


def test_known_cause_is_corrected_in_a_further_process_and_explains_the_deviation(tmp_path: Path) -> None:
    ran = Ran(tmp_path, workload="my_workload:build", behaviour=outputs(update=rounded_betas))
    record = ran.record()
    assert (ran.code, record.agrees, record.facts["tensorflow"]) == (0, True, ADAM)
    corrected = [
        (job.settings.backend, job.settings.precision, job.parity.correct) for job in ran.executor.jobs if job.parity
    ]
    assert [one for one in corrected if one[2]] == [("tensorflow", "float64", [Operation.PYTHON_FLOATS])]
    assert [pair.corrected["float64"].update for pair in record.pairs if "tensorflow" in pair.backends] == [0.0, 0.0]


def test_operation_that_ran_at_one_precision_is_a_fact_of_the_backend(tmp_path: Path) -> None:
    of_precision = {"float64": Operation.FLOAT32_LAYERS, "float32": Operation.REPEATED_ROWS}

    def behave(job: Job) -> Outcome:
        outcome = outputs(facts=replace(ADAM, operations=[of_precision[job.settings.precision]]))(job)
        assert isinstance(outcome, Outcome)
        return outcome

    record = Ran(tmp_path, behaviour=behave).record()
    assert record.facts == dict.fromkeys(record.facts, replace(ADAM, operations=sorted(of_precision.values())))


@pytest.mark.parametrize("defect", [1.0 + 1e-3, 1.0 + 1e-5])
def test_known_cause_does_not_explain_an_additional_defect(tmp_path: Path, defect: float) -> None:
    def update(job: Job) -> float:
        return rounded_betas(job) * on("tensorflow", defect)(job)

    ran = Ran(tmp_path, workload="my_workload:build", behaviour=outputs(update=update))
    assert (ran.code, [pair.agrees for pair in ran.record().pairs]) == (1, [False, False, True])
    assert ran.record().pairs[0].located == "the optimiser's step on m/kernel; every gradient agrees"


def test_failed_corrected_process_leaves_the_deviation_unexplained(tmp_path: Path) -> None:
    working = outputs(update=rounded_betas)

    def behave(job: Job) -> Outcome:
        return crash()(job) if job.parity and job.parity.correct else working(job)

    record = Ran(tmp_path, workload="my_workload:build", behaviour=behave).record()
    assert [pair.agrees for pair in record.pairs] == [False, False, True]
    assert record.failures == {"tensorflow float64, corrected": "crash: ended by signal 11"}


def of_openvino(output: float = 1.0) -> Any:
    """Return a behaviour in which OpenVINO computes in float32 alone, and its outputs are so many times the others'."""
    agreeing = outputs(output=on("openvino", output))

    def behave(job: Job) -> Outcome:
        if (job.settings.backend, job.settings.precision) != ("openvino", "float64"):
            return agreeing(job)
        refusal = {"exception": "keras_matrix.runner.cell.backends.Unsupported", "message": FLOAT32_ALONE}
        write_result(job, replace(FakeExecutor().result(job), **refusal))
        return Outcome(exit_code=1)

    return behave


def test_backend_that_does_not_train_is_compared_with_each_other_one_by_its_outputs(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "--backend", "torch", "--backend", "openvino", behaviour=of_openvino(), absent=frozenset())
    record = ran.record()
    assert (ran.code, record.agrees) == (0, True)
    [pair] = record.pairs
    assert (pair.backends, pair.deviations) == (["torch", "openvino"], {"float32": Deviation(outputs=0.0)})
    assert record.unsupported == {"openvino float64, predict": f"unsupported: {FLOAT32_ALONE}"}
    predicted = [job.settings for job in ran.executor.jobs if job.parity and job.parity.role == "predict"]
    assert [(settings.backend, settings.precision) for settings in predicted] == [
        ("openvino", "float64"),
        ("openvino", "float32"),
        ("torch", "float32"),
    ]
    trained = {job.settings.backend for job in ran.executor.jobs if job.parity and job.parity.role == "train"}
    assert trained == {"torch"}


def test_outputs_that_differ_are_a_deviation_at_the_layer_that_differs(tmp_path: Path) -> None:
    """Mutation: only trained pairs are located, or judged."""
    flags = ("--backend", "jax", "--backend", "torch", "--backend", "openvino")
    ran = Ran(tmp_path, *flags, behaviour=of_openvino(1.01), absent=frozenset())
    assert ran.code == 1
    assert {tuple(pair.backends): (pair.agrees, pair.located) for pair in ran.record().pairs} == {
        ("jax", "torch"): (True, None),
        ("jax", "openvino"): (False, "the output of layer m/second"),
        ("torch", "openvino"): (False, "the output of layer m/second"),
    }


def parity_limits() -> Any:
    from keras_matrix.analysis import parity

    return parity.LIMITS


def test_others_are_compared_although_a_parity_process_crashed(tmp_path: Path) -> None:
    agreeing = outputs()

    def behave(job: Job) -> Outcome:
        return crash()(job) if job.settings.backend == "torch" else agreeing(job)

    ran = Ran(tmp_path, behaviour=behave)
    assert (ran.code, len(ran.record().pairs)) == (1, 1)


def test_failed_weight_creation_is_reported(tmp_path: Path) -> None:
    ran = Ran(tmp_path, behaviour=crash())
    assert (ran.code, list(ran.record().failures)) == (1, ["tensorflow weights", "jax weights", "torch weights"])


def test_output_with_other_weights_is_refused(tmp_path: Path) -> None:
    ran = Ran(tmp_path, behaviour=outputs(sha256="b" * 64))
    assert (ran.code, ran.record().pairs) == (1, [])


def test_trace_of_another_process_is_refused(tmp_path: Path) -> None:
    def behave(job: Job) -> Outcome:
        job.trace_path.write_text(dumps(ParityOutput("another", SHA256)), encoding="utf-8")
        return Outcome(exit_code=0)

    failures = Ran(tmp_path, behaviour=behave).record().failures
    assert failures["tensorflow weights"] == "error: bad_trace: the trace belongs to another process"


def test_only_requested_backends_and_precisions_run(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "--backend", "torch", "--backend", "jax", "--precision", "float64", "--steps", "3")
    assert {(job.settings.backend, job.steps) for job in ran.executor.jobs} == {("jax", 3), ("torch", 3)}
    assert [list(pair.deviations) for pair in ran.record().pairs] == [["float64"]]


def test_document_contains_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ran(tmp_path, "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["version"], document["exit_code"]) == (1, 0)
    assert document["workloads"][0]["pairs"][0]["deviations"]["float64"]["gradient"] == 0.0


def test_newer_comparison_replaces_the_older_and_scratch_is_removed(tmp_path: Path) -> None:
    Ran(tmp_path, behaviour=outputs(gradient=on("jax", 1.001)))
    ran = Ran(tmp_path)
    assert ran.record().agrees
    assert [path.name for path in (ran.results / "parity").iterdir() if path.suffix != ".json"] == []


def test_weights_can_be_stored_under_their_content_hash(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "--keep-weights")
    assert [path.name for path in (ran.results / "parity" / "weights").iterdir()] == [f"{SHA256}.npz"]


def test_every_workload_of_the_catalog_has_a_small_preset_that_fits() -> None:
    known = load().workloads
    assert set(SMALL) == set(known)
    assert [(w, k) for w, preset in SMALL.items() for k, v in preset.items() if known[w].params[k].problem(v)] == []


def test_preset_batch_size_is_overridden_by_a_flag(tmp_path: Path) -> None:
    of_preset = Ran(tmp_path / "a", workload="xception").executor.jobs
    expected = Ran(tmp_path / "b", "--batch-size", "2", workload="xception").executor.jobs
    assert [{job.settings.batch_size for job in jobs} for jobs in (of_preset, expected)] == [{4}, {2}]


def test_damaged_comparison_file_is_skipped_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "parity"
    folder.mkdir()
    (folder / "broken.json").write_text("{}")
    records, problems = parity_files.load(tmp_path)
    assert (records, len(problems)) == ([], 1)
    assert "not a parity record" in problems[0]


def test_what_is_printed_of_a_comparison(transcript: Transcript, golden: Golden) -> None:
    def crashing(job: Job) -> Outcome:
        return crash()(job) if job.settings.backend == "torch" else outputs()(job)

    openvino = frozenset[str]()
    for text, workload, behaviour, *absent in (
        ("with OpenVINO, which does not train", "mnist_mlp", of_openvino(), openvino),
        ("with other outputs on OpenVINO", "mnist_mlp", of_openvino(1.01), openvino),
        ("all agree", "mnist_mlp", outputs()),
        ("JAX has another gradient", "mnist_mlp", outputs(gradient=on("jax", 1.001))),
        (
            "PyTorch has another loss, by one layer",
            "mnist_mlp",
            outputs(losses=on("torch", 1.1), output=on("torch", 1.1)),
        ),
        ("TensorFlow rounds the betas of Adam, which is known", "my_workload:build", outputs(update=rounded_betas)),
        ("PyTorch crashes", "mnist_mlp", crashing),
        ("every process crashes", "mnist_mlp", crash()),
        ("processes with weights of their own", "mnist_mlp", outputs(sha256="b" * 64)),
    ):
        transcript.note(text)
        executor = FakeExecutor(behaviours={workload: behaviour}, **({"absent": absent[0]} if absent else {}))
        transcript.run(f"parity {workload}", seams=Seams(executor=executor))
    golden.check("parity.txt", transcript.text)


def test_messages_of_comparisons_that_are_refused(transcript: Transcript, golden: Golden) -> None:
    executor = FakeExecutor()
    flags = ("mnist_mpl", "--backend jaxx", "--backend jax", "--precision float16", "--steps 1", "--batch-size 0")
    transcript.run(*(f"parity {flag}" for flag in flags), seams=Seams(executor=executor))
    flags = ("--set imagesize=9", "--set image_size=0", "--set image_size", "--devices 1", "--distribution model")
    flags = (*flags, "--devices 3 --batch-size 4")
    transcript.run(*(f"parity mnist_mlp {flag}" for flag in flags), seams=Seams(executor=executor))
    assert executor.jobs == []
    golden.check("parity_refused.txt", transcript.text)

"""The options of a model: the matrix's if it sets them, else the workload's own. Pure, on a fake model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.models.workload import Built
from keras_matrix.records.identity import cell_id
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.options import accumulated_steps, applied, job_as_resolved
from tests.conftest import make_settings


def model(**options: Any) -> Any:
    """Return what the runner uses of a model's options; Keras would compile it."""
    plain = {"steps_per_execution": 1, "run_eagerly": False, "jit_compile": True, "_jit_compile": True}
    plain |= {"optimizer": SimpleNamespace(gradient_accumulation_steps=None, built=False)}
    return SimpleNamespace(**(plain | {"_resolve_auto_jit_compile": lambda: True} | options))


def own(**changes: Any) -> Settings:
    return make_settings(workload="mine:build", **changes)


def built(fake: Any, samples: int | None = None) -> Built:
    return Built(fake, lambda count, seed: (None, None), available_samples=samples)


def test_functions_created_before_the_options_are_recreated() -> None:
    fake = model(train_function=print, test_function=print, predict_function=print)
    applied(built(fake), own())
    assert (fake.train_function, fake.test_function, fake.predict_function) == (None, None, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"steps_per_execution": 4}, ["steps_per_execution=4"]),
        ({"run_eagerly": True}, ["run_eagerly=True"]),
        ({"jit_compile": False}, ["jit_compile=False"]),
    ],
)
def test_options_not_set_by_the_matrix_are_the_workloads(options: dict[str, Any], expected: list[str]) -> None:
    fake = model(**options)
    resolved, kept = applied(built(fake), own())
    assert kept == expected
    assert (resolved.eager, resolved.steps_per_execution) == (fake.run_eagerly, fake.steps_per_execution)
    assert vars(fake).items() >= ({} if fake.run_eagerly else options).items()


def test_an_eager_model_is_not_compiled() -> None:
    fake = model(run_eagerly=True)
    applied(built(fake), own())
    assert fake.jit_compile is False


def test_options_that_the_matrix_sets_replace_those_of_the_workload() -> None:
    fake = model(run_eagerly=True, steps_per_execution=4, _jit_compile=False)
    settings = own(set_by_matrix="eager,steps_per_execution", steps_per_execution=2)
    assert applied(built(fake), settings) == (settings, [])
    assert (fake.run_eagerly, fake.steps_per_execution) == (False, 2)
    assert fake._jit_compile is None  # which Keras resolves again


@pytest.mark.parametrize(
    ("changes", "expected"), [({"jit": False}, False), ({"league": "matched", "jit": "auto"}, True)]
)
def test_the_matrix_decides_whether_a_step_is_compiled(changes: dict[str, Any], expected: bool) -> None:
    fake = model(jit_compile=not expected)
    assert applied(built(fake), own(**changes))[1] == []
    assert fake.jit_compile is expected


def test_a_workload_of_this_project_has_no_options_of_its_own() -> None:
    fake = model(jit_compile=False, steps_per_execution=4, run_eagerly=True)
    _, kept = applied(built(fake), make_settings())
    assert (kept, fake.steps_per_execution, fake.run_eagerly) == ([], 1, False)


@pytest.mark.parametrize(
    ("set_by_matrix", "available", "expected"), [("", 300, 300), ("samples", 300, 1000), ("", None, 1000)]
)
def test_samples_are_those_the_workload_brought_unless_the_matrix_sets_them(
    set_by_matrix: str, available: int | None, expected: int
) -> None:
    settings = own(samples=1000, set_by_matrix=set_by_matrix)
    assert applied(built(model(), available), settings)[0].samples == expected


@pytest.mark.parametrize(
    ("changes", "feed"),
    [
        ({}, "pipeline"),
        ({"feed": "host_fed", "set_by_matrix": "feed"}, "host_fed"),
        ({"workload": "finetune"}, "host_fed"),
    ],
)
def test_batches_of_a_workloads_source_decide_their_size_and_the_samples(changes: dict[str, Any], feed: str) -> None:
    pipeline: Any = SimpleNamespace(batch_size=8, batches_per_pass=5)
    settings = replace(own(feed="host_fed"), **changes)
    resolved, _ = applied(replace(built(model()), pipeline=pipeline), settings)
    assert (resolved.feed, resolved.batch_size, resolved.samples) == (feed, 8, 40)


def job(settings: Settings, steps: int | None) -> Job:
    return Job("nonce", cell_id(settings), 0, 0, settings, steps, "/nowhere", [], None, None)


@pytest.mark.parametrize(
    ("steps_per_epoch", "steps", "chunk", "expected"),
    [(10, 10, 1, 10), (10, 10, 4, 12), (4, 4, 4, 4), ("auto", None, 4, None), ("auto", 7, 4, 8), ("seed", 99, 4, 12)],
)
def test_the_steps_of_an_epoch_are_full_calls_of_the_backend(
    steps_per_epoch: int | str, steps: int | None, chunk: int, expected: int | None
) -> None:
    requested = own(steps_per_epoch=steps_per_epoch, samples=1000, batch_size=32)
    compiled = replace(requested, samples=300, steps_per_execution=chunk)
    resolved = job_as_resolved(job(requested, steps), compiled)
    assert (resolved.steps, resolved.settings) == (expected, compiled)


def test_more_steps_per_execution_than_steps_are_refused() -> None:
    requested = own(steps_per_epoch=4)
    with pytest.raises(ValueError, match="the workload compiles with 5, more than steps_per_epoch, 4; set"):
        job_as_resolved(job(requested, 4), replace(requested, steps_per_execution=5))


def accumulating(steps: int | None, *, is_built: bool = False) -> Any:
    """A model whose optimizer is within that of loss scaling."""
    inner = SimpleNamespace(gradient_accumulation_steps=steps, built=is_built)
    return model(optimizer=SimpleNamespace(inner_optimizer=inner, gradient_accumulation_steps=None))


@pytest.mark.parametrize(("own_steps", "wanted", "expected"), [(None, 1, 1), (None, 4, 4), (2, 1, 2), (2, 4, 4)])
def test_the_matrix_sets_how_many_gradients_are_averaged_else_the_workload(
    own_steps: int | None, wanted: int, expected: int
) -> None:
    fake = accumulating(own_steps)
    found = applied(built(fake), own(gradient_accumulation_steps=wanted))[1]
    assert (accumulated_steps(fake), found) == (expected, [])


def test_optimizer_that_is_built_cannot_be_made_to_accumulate() -> None:
    with pytest.raises(ValueError, match="gradient_accumulation_steps: the workload's optimizer is built already"):
        applied(built(accumulating(None, is_built=True)), own(gradient_accumulation_steps=4))
    fake = accumulating(4, is_built=True)
    applied(built(fake), own(gradient_accumulation_steps=4))
    assert accumulated_steps(fake) == 4


def test_a_model_that_predicts_needs_no_optimizer() -> None:
    assert applied(built(model(optimizer=None)), own(phase="predict"))[1] == []

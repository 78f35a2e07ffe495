"""The options of a cell's model: the matrix's if it sets them, else those that a user's workload compiled with.

The options that ran are those recorded. This project's workloads do not set them; a user's may call `compile` with
`run_eagerly`, `steps_per_execution` or `jit_compile`, and may have any number of samples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from keras_matrix.models.workload import Built, InputPipeline, Request
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.runner.cell.batches import steps_of_pass
from keras_matrix.runner.cell.job import Job

MADE_BY_KERAS = ("train_function", "test_function", "predict_function")
"""Attributes in which a model stores the functions that Keras makes of its steps at the first call."""


def request_of(job: Job) -> Request:
    """Return the job's request to its workload."""
    settings = job.settings
    return Request(
        params={**settings.params},
        data=settings.data,
        dataset_dir=job.dataset_dir,
        batch_size=settings.batch_size,
        seed=settings.seed,
        folders=tuple(job.import_roots),
        phase=settings.phase,
    )


def applied(built: Built, settings: Settings) -> tuple[Settings, list[str]]:
    """Apply the settings to the model. Raises ValueError.

    Return the resulting settings, and the options of `compile` that the workload set and that were not changed.
    Functions that the model already has, since its build trained it or set them, are recreated by Keras: they would run
    with their original options.
    """
    model = built.model
    for name in MADE_BY_KERAS:
        setattr(model, name, None)
    own: list[str] = []
    if settings.leaves("steps_per_execution"):
        own += [f"steps_per_execution={model.steps_per_execution}"] if model.steps_per_execution != 1 else []
    else:
        model.steps_per_execution = settings.steps_per_execution
    if settings.leaves("eager"):
        own += ["run_eagerly=True"] if model.run_eagerly else []
    elif model.run_eagerly != settings.eager:
        model.run_eagerly = settings.eager
        model._jit_compile = None  # Keras resolves it again: run_eagerly had disabled it
    own += _compile(model, settings)
    _accumulate(model, settings)
    resolved = replace(settings, steps_per_execution=int(model.steps_per_execution), eager=bool(model.run_eagerly))
    if settings.leaves("samples") and built.available_samples is not None:
        resolved = replace(resolved, samples=built.available_samples)
    return _with_input(resolved, built.pipeline), own


def _with_input(settings: Settings, pipeline: InputPipeline | None) -> Settings:
    """Return the settings with the batches of the workload's pipeline, which a user's own source decides.

    A user's workload trains from its source, unless the matrix sets where batches come from.
    """
    if pipeline is None:
        return settings
    batches = pipeline.batches_per_pass
    return replace(
        settings,
        batch_size=pipeline.batch_size,
        samples=settings.samples if batches is None else batches * pipeline.batch_size,
        feed=PIPELINE if settings.leaves("feed") else settings.feed,
    )


def _compile(model: Any, settings: Settings) -> list[str]:
    """Set whether the step is compiled; return it as the workload's own option if the workload decided it."""
    if model.run_eagerly:
        model.jit_compile = False
    elif settings.jit != "auto":
        model.jit_compile = settings.jit
    elif settings.league == "matched":
        model.jit_compile = True
    elif ":" in settings.workload and model.jit_compile != model._resolve_auto_jit_compile():
        return [f"jit_compile={model.jit_compile}"]
    return []


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer within that of loss scaling."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def accumulated_steps(model: Any) -> int:
    """Return how many steps' gradients the model's optimizer averages for one change of the weights."""
    return getattr(inner_optimizer(model.optimizer), "gradient_accumulation_steps", None) or 1


def _accumulate(model: Any, settings: Settings) -> None:
    """Set how many steps' gradients are averaged, unless the matrix leaves that to the workload's optimizer.

    Raises ValueError for an optimizer whose variables exist: those that accumulate are made with them.
    """
    wanted = settings.gradient_accumulation_steps
    if wanted == 1 or accumulated_steps(model) == wanted:
        return
    optimizer = inner_optimizer(model.optimizer)
    if getattr(optimizer, "built", True):
        raise ValueError(
            "gradient_accumulation_steps: the workload's optimizer is built already, and Keras adds no accumulators "
            f"then; do not train in build(), or give the optimizer gradient_accumulation_steps={wanted}"
        )
    optimizer.gradient_accumulation_steps = wanted


def job_as_resolved(job: Job, settings: Settings) -> Job:
    """Return the job with these settings, and its steps as a multiple of a call of the backend. Raises ValueError."""
    steps, chunk = job.steps, settings.steps_per_execution
    if steps is not None and job.settings.steps_per_epoch == "seed":
        steps = steps_of_pass(settings)
    if isinstance(job.settings.steps_per_epoch, int) and chunk > job.settings.steps_per_epoch:
        raise ValueError(
            f"steps_per_execution: the workload compiles with {chunk}, more than steps_per_epoch, "
            f"{job.settings.steps_per_epoch}; set steps_per_execution in the matrix, or a larger steps_per_epoch"
        )
    return replace(job, settings=settings, steps=None if steps is None else math.ceil(steps / chunk) * chunk)

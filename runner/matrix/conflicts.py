"""Conflicts between settings: add a new rule between two axes of a matrix here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keras_matrix.records.fc import spec
from keras_matrix.records.identity import PARAMS
from keras_matrix.records.parts import KIND_OF_PART, is_part
from keras_matrix.records.settings import (
    BACKWARD,
    CALLED,
    COMPILED,
    DEVICE_CALLS,
    EXPORTED,
    FEEDS,
    FIT,
    FROZEN_QUANTIZATIONS,
    GENERATE,
    GRADIENT,
    GRADIENT_CALLS,
    KERAS,
    KERAS_CALLS,
    NATIVE,
    ON_BATCH,
    ON_DEVICE,
    ON_GPU,
    ON_HOST,
    PIPELINE,
    PREDICT,
    REMAT_OFF,
    RESIDENT,
    TENSORRT,
    Scalar,
    call_phase,
    is_script,
    program_settings,
)
from keras_matrix.runner.matrix.catalog import CatalogWorkload
from keras_matrix.runner.matrix.grammar import LARGEST, SETTINGS, Axes
from keras_matrix.runner.matrix.scalars import say

TRAINING_ONLY = ("gradient_accumulation_steps", "remat")  # beyond their default
NO_TRAINING = {
    PREDICT: "which has no gradients",
    GENERATE: "which has no gradients",
    GRADIENT: "which updates no weight",
}
# What another implementation than Keras's does, in the phase of the workload's twin.
NATIVE_ONLY: dict[str, Scalar] = {
    "feed": RESIDENT,
    "precision": "float32",
    "steps_per_execution": 1,
    "gradient_accumulation_steps": 1,
    "remat": REMAT_OFF,
    "devices": 1,
    "nodes": 1,
    "quantization": "none",
    "lora_rank": 0,
}
# Settings of a step that Keras makes, which a call of the model itself does not have.
OF_KERAS_STEPS: dict[str, Scalar] = {"jit": "auto", "eager": False}
OF_PARTS: dict[str, Scalar] = {"phase": PREDICT}
GPU_ONLY = ("clocks", "autotune")  # beyond their default


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict between two settings: `key` has a value that `other` does not allow."""

    key: str
    other: str
    text: str


def conflicts(axes: Axes, workload: CatalogWorkload) -> Iterator[Conflict]:
    """Yield the conflicts between the settings of an entry, some of them with parameters of its workload."""
    epochs = min(_numbers(axes["epochs"]))
    if (discard := max(_numbers(axes["discard"]))) >= epochs:
        yield Conflict("discard", "epochs", f"must be less than epochs ({epochs}), got {discard}")
    steps = _numbers(axes["steps_per_epoch"])
    if steps and (steps_a_call := max(_numbers(axes["steps_per_execution"]))) > min(steps):
        text = f"must be at most steps_per_epoch ({min(steps)}), got {steps_a_call}"
        yield Conflict("steps_per_execution", "steps_per_epoch", text)
    for key in TRAINING_ONLY:
        usual, phases = SETTINGS[key].default, [phase for phase in axes["phase"] if phase != FIT]
        if phases and (unusual := next((value for value in axes[key] if value != usual), None)):
            text = f"must be {usual} with phase: {phases[0]}, {NO_TRAINING[str(phases[0])]}, got {say(unusual)}"
            yield Conflict(key, "phase", text)
    if GENERATE in axes["phase"]:
        yield from _of_generation(axes, workload)
    if not workload.is_users:  # whose parameters may have these names and another meaning
        yield from _of_quantised_weights(axes)
    if steps and (most := max(_numbers(axes["gradient_accumulation_steps"]))) > min(steps):
        text = f"must be at most steps_per_epoch ({min(steps)}), or no weight changes in an epoch, got {most}"
        yield Conflict("gradient_accumulation_steps", "steps_per_epoch", text)
    for key in GPU_ONLY:
        usual, other_devices = SETTINGS[key].default, [name for name in axes["device"] if name != "gpu"]
        if other_devices and (unusual := next((value for value in axes[key] if value != usual), None)):
            text = (
                f"must be {usual} on device {other_devices[0]}, got {say(unusual)}; "
                "write a separate entry for GPU cells"
            )
            yield Conflict(key, "device", text)
    if workload.name == spec.WORKLOAD and LARGEST in axes["batch_size"]:
        yield Conflict("batch_size", "workload", f"must be a whole number for {workload.name}, got {say(LARGEST)}")
    yield from _of_parts(axes, workload)
    yield from _of_programs(axes, workload)
    yield from _of_implementations(axes, workload)
    yield from _of_calls(axes)
    yield from _of_native_calls(axes, workload)
    yield from _of_outputs(axes)
    yield from _of_compilers(axes)
    yield from _of_pipelines(axes, workload)
    for source in axes["data"]:
        if source not in workload.data:
            text = f"must be {' or '.join(workload.data)} for {workload.name}, got {say(source)}"
            yield Conflict("data", "workload", text)


def _of_parts(axes: Axes, workload: CatalogWorkload) -> Iterator[Conflict]:
    """Yield the conflicts of single layers and operations: they are called, with inputs that are made for them."""
    if not is_part(workload.name):
        return
    for key, only in OF_PARTS.items():
        if (value := next((value for value in axes[key] if value != only), None)) is not None:
            text = f"must be {only} with workload: {KIND_OF_PART[workload.name]}, got {say(value)}"
            yield Conflict(key, "workload", text)


def _of_programs(axes: Axes, workload: CatalogWorkload) -> Iterator[Conflict]:
    """Yield the settings that the cell of a program does not take, and values that it does not."""
    if not is_script(workload.name):
        return
    calls = axes.get(f"{PARAMS}call", ("",))
    taken_keys = frozenset.intersection(*map(program_settings, calls))
    for key in sorted(SETTINGS.keys() - taken_keys):
        usual = workload.own_defaults.get(key, SETTINGS[key].default)
        if (value := next((value for value in axes[key] if value != usual), None)) is not None:
            call_text = f", call: {calls[0]}" if calls[0] and key in program_settings("") else ""
            text = f"must be left out with a script{call_text}, which decides it itself, got {say(value)}"
            yield Conflict(key, "workload", text)
    if "auto" in axes["steps_per_epoch"]:
        yield Conflict("steps_per_epoch", "workload", "must be seed or a whole number with a script, got auto")
    if 0 in axes["discard"]:
        text = "must be at least 1 with a script, whose first epoch builds and compiles, got 0"
        yield Conflict("discard", "workload", text)
    for call in calls:
        phase = call_phase(call)
        if phase and (other := next((value for value in axes["phase"] if value != phase), None)):
            text = f"must be {phase} for the script's {f'call: {call}' if call else 'first call that trains'}"
            yield Conflict("phase", "workload", f"{text}, got {say(other)}")


def _of_implementations(axes: Axes, workload: CatalogWorkload) -> Iterator[Conflict]:
    """Yield the conflicts of implementations other than Keras's: a twin does one phase of its workload, plainly."""
    others = [value for value in axes["implementation"] if value != KERAS]
    if others and not workload.twin:
        text = f"must be {KERAS} for {workload.name}, which has no twin in plain framework code, got {say(others[0])}"
        text += "; docs/keras-cost.md lists those that have one"
        yield Conflict("implementation", "workload", text)
    if workload.twin == GENERATE and (steps := [value for value in others if value != NATIVE]):
        text = f"must be {KERAS} or {NATIVE} for {workload.name}, whose twin generates, got {say(steps[0])}"
        yield Conflict("implementation", "workload", text)
        others = [value for value in others if value == NATIVE]
    for key, only in {"phase": workload.twin or FIT, **NATIVE_ONLY}.items() if others else ():
        if (value := next((value for value in axes.get(key, ()) if value != only), None)) is not None:
            yield Conflict(key, "implementation", f"must be {only} with implementation: {others[0]}, got {say(value)}")


def _of_calls(axes: Axes) -> Iterator[Conflict]:
    """Yield the conflicts of calls other than `predict_on_batch`: only those of settings that they have."""
    others = [value for value in axes["call"] if value != ON_BATCH]
    phases = [phase for phase in axes["phase"] if phase not in CALLED]
    if others and phases:
        text = f"must be {ON_BATCH} with phase: {phases[0]}, which does not predict, got {say(others[0])}"
        yield Conflict("call", "phase", text)
    without = [value for value in axes["call"] if value not in GRADIENT_CALLS]
    if GRADIENT in axes["phase"] and without:
        text = f"must be {_alternatives(GRADIENT_CALLS)} with phase: {GRADIENT}"
        yield Conflict("call", "phase", f"{text}, got {say(without[0])}")
    own_steps = [value for value in others if value not in (*KERAS_CALLS, NATIVE)]
    rules = [("steps_per_execution", 1, others), *((key, usual, own_steps) for key, usual in OF_KERAS_STEPS.items())]
    for key, usual, calls in rules:
        if calls and (value := next((value for value in axes[key] if value != usual), None)) is not None:
            usual_text = usual if isinstance(usual, str) else say(usual)
            text = f"must be {usual_text} with call: {calls[0]}, which it does not affect, got {say(value)}"
            yield Conflict(key, "call", text)
    exported = [value for value in others if value in EXPORTED]
    device = next((device for device in axes["device"] if device != "cpu"), None)
    if device is not None and (
        call := next((value for value in exported if device != "gpu" or value not in ON_GPU), None)
    ):
        text = f"must be cpu with call: {call}, an exported file, got {say(device)}"
        yield Conflict("device", "call", text)
    if TENSORRT in exported and "cpu" in axes["device"]:
        yield Conflict("device", "call", f"must be gpu with call: {TENSORRT}, which needs one, got cpu")


def _of_native_calls(axes: Axes, workload: CatalogWorkload) -> Iterator[Conflict]:
    """Yield the conflicts of `call: native`: as of a native implementation, of workloads whose twin trains."""
    if NATIVE not in axes["call"]:
        return
    if workload.twin != FIT:
        text = f"{workload.name} has no twin in plain framework code that is called; docs/keras-cost.md lists those"
        yield Conflict("call", "workload", f"must not be {NATIVE}: {text} that have one")
        return
    for key, only in {"implementation": KERAS, **NATIVE_ONLY}.items():
        if (value := next((value for value in axes.get(key, ()) if value != only), None)) is not None:
            yield Conflict(key, "call", f"must be {only} with call: {NATIVE}, got {say(value)}")


def _of_outputs(axes: Axes) -> Iterator[Conflict]:
    """Yield the conflicts of outputs that stay on the device: a call that returns NumPy arrays has copied them."""
    if ON_DEVICE not in axes["outputs"]:
        return
    if other := next((phase for phase in axes["phase"] if phase != PREDICT), None):
        text = f"must be {ON_HOST} with phase: {other}, which does not predict, got {ON_DEVICE}"
        yield Conflict("outputs", "phase", text)
    elif call := next((value for value in axes["call"] if value not in DEVICE_CALLS), None):
        text = f"must be {ON_HOST} with call: {call}, which returns its outputs in the host's memory, got {ON_DEVICE}"
        yield Conflict("outputs", "call", f"{text}; set call: {_alternatives(DEVICE_CALLS)} in an entry of its own")


def _of_compilers(axes: Axes) -> Iterator[Conflict]:
    """Yield the conflicts of options of compilers with settings by which nothing is compiled, or otherwise."""
    given = next((value for value in axes["torch_compile"] if value), None)
    is_compiled = set(axes["jit"]) == {True} or set(axes["call"]) == {COMPILED} or set(axes["league"]) == {"matched"}
    if given and not is_compiled:
        text = f"must be left out without jit: true or call: {COMPILED}: PyTorch compiles nothing, got {given}"
        yield Conflict("torch_compile", "jit", text)
    inexact = next((value for value in axes["matmul_precision"] if value not in ("default", "highest")), None)
    if inexact and "matched" in axes["league"]:
        text = f"must be highest with league: matched, whose cells all compute so, got {inexact}"
        yield Conflict("matmul_precision", "league", text)


def _of_generation(axes: Axes, workload: CatalogWorkload) -> Iterator[Conflict]:
    """Yield the conflicts of `phase: generate`."""
    if not workload.generates:
        text = f"must be fit, predict or gradient for {workload.name}, which is no language model of KerasHub"
        yield Conflict("phase", "workload", f"{text}, got generate")
    if (steps_a_call := max(_numbers(axes["steps_per_execution"]))) > 1:
        text = f"must be 1 with phase: generate, whose step is one call of generate(), got {steps_a_call}"
        yield Conflict("steps_per_execution", "phase", text)
    prompts, longest = (_numbers(axes.get(key, ())) for key in ("prompt_length", "max_length"))
    if prompts and longest and max(prompts) >= min(longest):
        text = f"must be below max_length ({min(longest)}) with phase: generate, got {max(prompts)}"
        text += "; write an entry of its own for others"
        yield Conflict("prompt_length", "max_length", text)


def _of_quantised_weights(axes: Axes) -> Iterator[Conflict]:
    """Yield the conflict of whole-number weights with training, in which only LoRA's weights have gradients."""
    frozen = [mode for mode in axes.get("quantization", ()) if mode in FROZEN_QUANTIZATIONS]
    training = next((phase for phase in axes["phase"] if phase in BACKWARD), None)
    if frozen and training and 0 in axes.get("lora_rank", ()):
        text = f"must be none or float8 with phase: {training} and lora_rank: 0, which trains all weights"
        yield Conflict("quantization", "phase", f"{text}, got {frozen[0]}; write an entry of its own for others")


def _of_pipelines(axes: Axes, workload: CatalogWorkload) -> Iterator[Conflict]:
    """Yield the conflicts of settings that concern an input pipeline; a user's workload is known in its cell only."""
    if workload.is_users:
        return
    others = [feed for feed in axes["feed"] if feed != PIPELINE]
    if not workload.has_pipeline and PIPELINE in axes["feed"]:
        text = f"must be {' or '.join(f for f in FEEDS if f != PIPELINE)} for {workload.name}, got {say(PIPELINE)}"
        yield Conflict("feed", "workload", text)
    calls = [phase for phase in axes["phase"] if phase != FIT]
    if PIPELINE in axes["feed"] and calls:
        text = f"must be fit with feed: {PIPELINE}, got {say(calls[0])}; set feed: device_resident to {calls[0]}"
        yield Conflict("phase", "feed", text)
    if others and "cold" in axes["page_cache"]:
        text = f"must be warm with feed: {others[0]}, which reads no files, got {say('cold')}"
        yield Conflict("page_cache", "feed", text)
    if others and True in axes["input_timers"]:
        text = f"must be false with feed: {others[0]}, which has no input pipeline, got true"
        yield Conflict("input_timers", "feed", text)


def _numbers(values: tuple[Scalar, ...]) -> list[int]:
    return [value for value in values if isinstance(value, int)]


def _alternatives(values: Sequence[str]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"

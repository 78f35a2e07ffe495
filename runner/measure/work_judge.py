"""Whether a process did the work that it was asked for: from what it counted to a status, or a caveat. Pure.

    mismatch    less, or other, work was done than was asked: the figures are of something else (`work_mismatch`)
    caveat      weights changed and batches were drawn, but not everything could be counted

Not known here: work that code forged on purpose, by rewriting counters (docs/work.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from keras_matrix.records.instruments.work_done import WorkDone, WorkStretch
from keras_matrix.records.schema import CellResult, Resolved
from keras_matrix.records.settings import Settings

NAMES = {
    "first_step": "the first step",
    "calibration": "finding the steps per epoch",
    "epochs": "the epochs",
    "short_epochs": "the epochs of the second length",
}


def misplaced(result: CellResult, device: str) -> str | None:
    """Return what of the model is on another platform than the device that was asked for, None where nothing is."""
    work = result.work
    for what, found in (("weights", work.weight_platforms), ("output", work.output_platforms)) if work else ():
        if elsewhere := [name for name in found if name != device]:
            where = ", ".join(elsewhere)
            return f"device: {device} was asked for, but the model's {what} are on {where}: the workload put them there"
    return None


def mismatch(result: CellResult, settings: Settings) -> str | None:
    """Return what work was not done as it was asked, None where all that was counted fits."""
    work = result.work
    if work is None:
        return None
    if settings.phase == "predict":
        return _first(_predicted(stretch, settings) for stretch in work.stretches)
    if work.optimizer_replaced:
        return "the model has another optimizer after fit than before: what was trained with is not known"
    return _first(_trained(stretch, settings, work) for stretch in work.stretches) or _unchanged(work)


def work_caveats(result: CellResult, settings: Settings) -> list[str]:
    """Return what could not be counted, or was counted and should be known."""
    if result.work is None:
        return []
    if settings.phase == "predict":
        return _own_predict(result.work)
    found = [*_uncounted(result.work, settings), *_more_than_asked(result.work), *_skipped(result.work)]
    if result.work.changed_variables and result.work.changed_variables < (result.work.trainable_variables or 0):
        found.append(
            f"weights_unchanged: only {result.work.changed_variables} of {result.work.trainable_variables} trainable "
            "weights changed in the epochs; check whether the others are meant to be frozen"
        )
    elif result.work.changed_variables == 0 and not result.work.skipped_updates:
        found.append(
            "weights_unchanged: no weight changed, since the optimizer's steps are smaller than a weight's last place "
            "(a higher learning rate does change them); raise the learning rate or the precision"
        )
    return found


def option_caveats(resolved: Resolved | None, settings: Settings) -> list[str]:
    """Return what a user's workload decided in place of the matrix."""
    if resolved is None:
        return []
    found = []
    if resolved.own_compile_options:
        keys = {"run_eagerly": "eager", "jit_compile": "jit"}
        names = [option.partition("=")[0] for option in resolved.own_compile_options]
        matrix_keys = ", ".join(keys.get(name, name) for name in names)
        found.append(
            f"own_options: the workload compiled its model with {', '.join(resolved.own_compile_options)}, and so it "
            f"ran; set {matrix_keys} in the matrix to decide it there"
        )
    found += _changed_in_training(resolved, settings)
    available = resolved.available_samples
    if available is not None and not settings.leaves("samples") and available < settings.samples:
        found.append(
            f"samples_repeated: samples is {settings.samples}, the workload brought {available}: they were repeated"
        )
    return found


def _changed_in_training(resolved: Resolved, settings: Settings) -> list[str]:
    """Return the options that the model no longer had after training, though matrix or `compile` had set them."""
    found = []
    for key, option in (("eager", "run_eagerly"), ("steps_per_execution", "steps_per_execution")):
        asked, ran = getattr(settings, key), getattr(resolved, key)
        if ran in (None, asked) or any(own.startswith(f"{option}=") for own in resolved.own_compile_options):
            continue
        found.append(
            f"own_options: {key} was {asked} before training and {ran} after it: the workload's code sets {option} "
            "while it trains; remove that"
        )
    return found


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _predicted(stretch: WorkStretch, settings: Settings) -> str | None:
    expected = stretch.steps * settings.batch_size
    for epoch, rows in enumerate(stretch.samples, start=1):
        if not rows or rows % expected:  # several rows a sample: one for each box or time step
            return (
                f"{NAMES[stretch.name]}: {stretch.steps} predict calls on {settings.batch_size} samples each returned "
                f"{rows} rows in epoch {epoch}, not {expected}"
            )
    return None


def _trained(stretch: WorkStretch, settings: Settings, work: WorkDone) -> str | None:
    """Return what of one call of `fit` does not fit what was asked of it."""
    return _updates(stretch) or _samples(stretch, settings, work) or _drawn(stretch)


def _updates(stretch: WorkStretch) -> str | None:
    if not any(stretch.updates) and not stretch.updates_outside:
        return None
    for epoch, (updates, skipped) in enumerate(zip(stretch.updates, stretch.skipped_updates, strict=True), start=1):
        done = (updates or 0) + skipped
        if done < stretch.steps or done % stretch.steps:
            made = f"the optimizer counted {updates} of {stretch.steps} updates in epoch {epoch}"
            return f"{NAMES[stretch.name]}: {made}{_outside(stretch)}"
    return None


def _outside(stretch: WorkStretch) -> str:
    return f", and {stretch.updates_outside} outside the epochs' clock" if stretch.updates_outside else ""


def _samples(stretch: WorkStretch, settings: Settings, work: WorkDone) -> str | None:
    unweighted = stretch.steps if work.own_methods else None  # a loss metric updated once a step, without a weight
    expected, coarse = stretch.steps * settings.batch_size, settings.precision == "bfloat16"
    least = min(expected, counted_in_bfloat16(settings.batch_size, stretch.steps)) if coarse else expected
    for epoch, samples in enumerate(stretch.samples, start=1):
        if samples in (None, 0, unweighted):
            continue
        if samples < least or (samples % expected and not coarse):
            return (
                f"{NAMES[stretch.name]}: the loss was taken over {samples} samples in epoch {epoch}, not over "
                f"{expected} ({stretch.steps} steps of {settings.batch_size})"
            )
    return None


def counted_in_bfloat16(batch_size: int, steps: int) -> int:
    """Return where a loss metric whose variables are bfloat16 ends that adds `batch_size` so many times.

    Precision bfloat16 makes metrics bfloat16 too: 8 significant bits, so that a sum stops growing at some 256 batches.
    """
    count = 0
    for _ in range(steps):
        longer = _bfloat16(count + _bfloat16(batch_size))
        if longer == count:
            break
        count = longer
    return count


def _bfloat16(value: int) -> int:
    """Return the nearest whole number that bfloat16 has, of two the even one."""
    unit = 1 << max(0, value.bit_length() - 8)
    return round(value / unit) * unit


def _drawn(stretch: WorkStretch) -> str | None:
    drawn, expected = stretch.batches_drawn, stretch.steps * stretch.epochs
    if drawn is None:
        return None
    if drawn < expected:
        return f"{NAMES[stretch.name]}: {drawn} of {expected} batches were drawn from the feed"
    if stretch.lookahead is not None and drawn > expected + stretch.lookahead:
        return f"{NAMES[stretch.name]}: {drawn} batches were drawn from the feed, not {expected}"
    return None


def _counted(work: WorkDone) -> bool:
    """Return whether the optimizer counted any update in the epochs."""
    return bool(work.updates_per_step)


def _unchanged(work: WorkDone) -> str | None:
    if work.trainable_variables == 0:
        return "the model has no trainable weight: there is nothing to train; set phase: predict"
    if work.changed_variables or work.changed_variables is None:
        return None
    if _counted(work) and (work.optimizer_state_changed or work.changed_at_high_rate):
        return None
    if work.skipped_updates:
        return None
    return f"none of {work.trainable_variables} trainable weights changed in the epochs: nothing was trained"


def _own_predict(work: WorkDone) -> list[str]:
    if not work.own_methods:
        return []
    return [f"work_not_counted: the model has its own {', '.join(work.own_methods)}: what a call computes is not known"]


def _uncounted(work: WorkDone, settings: Settings) -> list[str]:
    own = f" (the model has its own {', '.join(work.own_methods)})" if work.own_methods else ""
    measured = [stretch for stretch in work.stretches if stretch.name == "epochs"]
    if not _counted(work) and not work.skipped_updates:
        return [f"work_not_counted: weights changed, but the optimizer counted no update{own}"]
    batch = [samples for stretch in measured for samples in stretch.samples]
    if not any(batch) or (work.own_methods and work.samples_per_step == 1 < settings.batch_size):
        return [f"work_not_counted: the samples of a step are not in Keras's loss metric{own}"]
    return []


def _more_than_asked(work: WorkDone) -> list[str]:
    if work.updates_per_step is None or work.updates_per_step <= 1:
        return []
    return [f"updates_per_step: the optimizer made {work.updates_per_step:g} updates a step"]


def _skipped(work: WorkDone) -> list[str]:
    if not work.skipped_updates:
        return []
    steps = sum(stretch.steps * stretch.epochs for stretch in work.stretches if stretch.name == "epochs")
    return [
        f"loss_scaling: {work.skipped_updates} of {steps} steps had gradients that were not finite and updated "
        "nothing, as loss scaling does; look at the loss, or use mixed_bfloat16"
    ]

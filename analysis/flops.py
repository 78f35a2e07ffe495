"""Agreement of several counts of one batch's FLOPs, and known reasons for disagreement.

Four comparisons, each with its tolerance:

  ours against arithmetic       the operations that ran against the layers' shapes: `SAME`
  a tool against ours           the framework's own count of the forward pass: `FORWARD`
  a tool against 3 x ours       its count of the training step against the convention: `TRAIN`
  a tool against arithmetic     its count of the training step against the layers' shapes: `TRAIN`

A tool that counts more, or counts loops once, is not wrong: it counts something else, and the result says what.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keras_matrix.records.instruments.work import FlopCheck

SAME = 0.005
FORWARD = 0.05
TRAIN = 0.10
TRAINING_PER_FORWARD = 3
LOOPS_ONCE = "the tool counts the body of a loop once"
# XLA counts only window positions inside the image; a 3 x 3 window at the edge of a small image has few of them.
NO_PADDING = "the tool leaves out a convolution's products with padding"
PADDING_LEAVES = 0.75
MORE = "the tool also counts element-wise work"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One comparison: `ratio` is of the second count to the first; None if one of them is missing."""

    what: str
    expected: float | None
    found: float | None
    ratio: float | None
    tolerance: float
    agrees: bool | None
    why: str


def agreements(check: FlopCheck) -> tuple[Agreement, ...]:
    """Compare the counts of one batch."""
    base = check.counted
    train = None if base is None else TRAINING_PER_FORWARD * base
    return (
        _agreement("ours / arithmetic", check.analytic, check.counted, SAME, ""),
        _agreement("tool / ours, forward", base, check.framework, FORWARD, _why_tool(check)),
        _agreement("tool / 3 x ours, step", train, check.framework_train, TRAIN, _why_train(check)),
        _agreement("tool / arithmetic, step", check.analytic_train, check.framework_train, TRAIN, _why_train(check)),
    )


def all_agree(checks: Iterable[FlopCheck]) -> bool:
    """Return whether no comparison differs by more than its tolerance without a known reason."""
    return all(agreement.agrees is not False or agreement.why for check in checks for agreement in agreements(check))


def _agreement(quantity: str, expected: float | None, actual: float | None, tolerance: float, why: str) -> Agreement:
    if not expected or actual is None:
        return Agreement(quantity, expected, actual, None, tolerance, None, "")
    ratio = actual / expected
    agrees = abs(ratio - 1) <= tolerance
    return Agreement(quantity, expected, actual, ratio, tolerance, agrees, "" if agrees else why)


def _why_tool(check: FlopCheck) -> str:
    if not check.counted or check.framework is None:
        return ""
    if _loops_once(check, check.framework / check.counted):
        return LOOPS_ONCE
    if check.framework > check.counted:
        return MORE
    return NO_PADDING if check.backend == "jax" and check.framework > check.counted * PADDING_LEAVES else ""


def _why_train(check: FlopCheck) -> str:
    """Return why a count of the training step differs; exact if arithmetic covers the first layer."""
    train, least = check.framework_train, check.analytic_train
    if not check.counted or train is None:
        return ""
    if _loops_once(check, train / (TRAINING_PER_FORWARD * check.counted)):
        return LOOPS_ONCE
    if least and abs(train / least - 1) <= SAME:
        return "the gradient of the first layer's input is not computed"
    if train > (least or TRAINING_PER_FORWARD * check.counted):
        return f"{MORE}, and sizes a convolution's gradients by its input" if check.backend == "tensorflow" else MORE
    return ""


def _loops_once(check: FlopCheck, ratio: float) -> bool:
    """Return whether most of a model's work is missing because its loop was counted once."""
    return check.loops and ratio < 0.5

"""What the measured process of a cell really did: counted inside it, judged by the runner.

Promise: `None` means not counted; never 0. Counts come from Keras's optimizer and loss metric and from the feed,
through references taken before the workload's own code is loaded. Code that rewrites the interpreter or this program
can forge them: that is outside the threat model (docs/work.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.field_docs import about


@dataclass(frozen=True, slots=True)
class WorkStretch:
    """Epochs run by one call: what was asked, and what was counted in each epoch that ran.

    `steps` are the steps (or predict calls) asked of each of `epochs` epochs; lists hold one value an epoch that ran.
    `lookahead` is how many batches more than it trained on Keras may draw, None where that is not bounded.
    `updates_outside` are updates that the call made while the clock of no epoch ran.
    """

    name: str
    steps: int
    epochs: int
    updates: list[int | None]
    samples: list[int | None]
    skipped_updates: list[int]
    batches_drawn: int | None = None
    lookahead: int | None = None
    updates_outside: int | None = None


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The work of one process, as it was counted."""

    stretches: list[WorkStretch] = about("every call that was timed: what was asked and what was counted")
    updates_per_step: float | None = about(
        "updates that the optimizer made, or loss scaling skipped, for each step of the epochs; null where not counted",
        default=None,
    )
    samples_per_step: float | None = about(
        "samples that the loss was taken over, or that were predicted, in each step; null where not counted",
        default=None,
    )
    batches_drawn: int | None = about("batches drawn from the feed for the epochs; null if not counted", default=None)
    skipped_updates: int | None = about("updates that loss scaling skipped in the measured call", default=None)
    trainable_variables: int | None = about("variables that training may change", default=None)
    changed_variables: int | None = about("of these, how many the measured epochs changed", default=None)
    optimizer_state_changed: bool | None = about(
        "whether the optimizer's own variables changed, its step counter left out", default=None
    )
    changed_at_high_rate: bool | None = about(
        "whether a step at a high learning rate changed a weight, tried where the epochs changed none", default=None
    )
    optimizer_replaced: bool = about("whether the model has another optimizer after fit than before", default=False)
    own_methods: list[str] = about(
        "methods of keras.Model that decide what is trained or predicted and that the workload replaces",
        default_factory=list,
    )
    weight_platforms: list[str] = about("platforms that the model's weights are on after the epochs", default=())
    output_platforms: list[str] = about(
        "platforms that the output of a batch is on after the epochs; empty where it cannot be read",
        default_factory=list,
    )

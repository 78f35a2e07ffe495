"""Judges the surroundings of all processes of one block together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.surroundings.disturbance import disturbed
from keras_matrix.analysis.surroundings.neighbours import cause_of, share_while_waiting
from keras_matrix.runner.executors import Outcome


def judged_together(ended: Sequence[tuple[str, Outcome]]) -> tuple[bool, list[Outcome]]:
    """Return whether a block was disturbed from outside, and its outcomes with the reason, in the same order.

    Each outcome is passed with its cell's name, and is returned with what that cell used while the others worked.
    """
    watched = [stretch for _, outcome in ended for stretch in outcome.watched or ()]
    reason = disturbed(watched)
    text = None if reason is None else cause_of(reason, [outcome.surroundings for _, outcome in ended])
    found = []
    for name, outcome in ended:
        share = share_while_waiting(name, watched)
        around = replace(outcome.surroundings, disturbed=text, waiting_cpu_share=share)
        found.append(replace(outcome, surroundings=around))
    return reason is not None, found

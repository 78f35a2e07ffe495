"""The FC modes in NumPy in a single process: the reference for every program's gradients and weights.

There are no workers: what is divided among them is one sum here. Only fc_phy has its own rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_matrix.models.fc.layout import Array, draw_batch, draw_weights
from keras_matrix.records.fc.spec import LEARNING_RATE, MODES, FcProblem, Kind


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of training: loss and gradients of the last step, and the weights after it, by model."""

    loss: float
    gradients: list[list[Array]]
    weights: list[list[Array]]


def train(problem: FcProblem, seed: int, steps: int) -> Trained:
    """Return the result of `steps` steps, computed in float64 from the weights and batch in the problem's precision."""
    batch, labels = (part.astype(np.float64) for part in draw_batch(problem, seed))
    models = [[weight.astype(np.float64) for weight in draw_weights(problem, seed)] for _ in range(problem.copies)]
    parts = list(zip(np.split(batch, problem.copies), np.split(labels, problem.copies), strict=True))
    losses, gradients = [0.0], [list[Array]()]
    for _ in range(steps):
        found = [backward(model, *part) for model, part in zip(models, parts, strict=True)]
        losses, gradients = [loss for loss, _ in found], [gradient for _, gradient in found]
        if not MODES[problem.mode].trains:
            gradients = [[] for _ in models]
            continue
        gradients = _exchanged(problem, gradients)
        models = [
            [weight - LEARNING_RATE * gradient for weight, gradient in zip(model, own, strict=True)]
            for model, own in zip(models, gradients, strict=True)
        ]
    return Trained(sum(losses), gradients, models)


def backward(weights: Sequence[Array], batch: Array, labels: Array) -> tuple[float, list[Array]]:
    """Return the loss of one model and its gradients, by backpropagation."""
    inputs = [batch]
    for weight in weights:
        inputs.append(inputs[-1] @ weight)
    difference = inputs.pop() - labels
    d = 2 * difference
    gradients = []
    for weight, x in zip(reversed(weights), reversed(inputs), strict=True):
        gradients.append(x.T @ d)
        d = d @ weight.T
    return float(np.sum(difference**2)), gradients[::-1]


def _exchanged(problem: FcProblem, gradients: list[list[Array]]) -> list[list[Array]]:
    """Apply a mode's rule to the gradients of all its copies, or to those of the single model."""
    if problem.kind is Kind.PHYSICS:
        return _shared(problem, gradients)
    if problem.reduce == "mean":
        return [[gradient / problem.data_size for gradient in own] for own in gradients]
    return gradients


def _shared(problem: FcProblem, gradients: list[list[Array]]) -> list[list[Array]]:
    """The rule of fc_phy: the first int(rows x shared_ratio) rows of each gradient are averaged, the rest is local."""
    found = [[gradient.copy() for gradient in own] for own in gradients]
    for layer in range(problem.level + 1):
        rows = int(len(gradients[0][layer]) * problem.shared_ratio)
        mean = np.mean([own[layer][:rows] for own in gradients], axis=0)
        for own in found:
            own[layer][:rows] = mean
    return found

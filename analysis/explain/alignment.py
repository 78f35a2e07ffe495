"""Pairs the parts of two traces: which operation of one side is which of the other.

Two sides of one backend are paired by phase, layer and operation; equal ones are counted, so that their order within
a layer does not matter. What has no partner, such as a renamed kernel, is a row of its own, and is compared with the
others of its layer and phase. Two backends have different operations: they are paired by phase and layer only.

A layer with another name is paired with the layer at the same place between two layers with equal names, if as many
were replaced. Not known: an operation that a compiler moved from one layer into a fusion of another.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from keras_matrix.analysis.explain.parts import WORKING, Part, PartKey, StepParts, TrackPlace
from keras_matrix.analysis.history.sessions import summed
from keras_matrix.analysis.stats.blocks import CONFIDENCE, t_quantile

_HASH = re.compile(r"\b[0-9a-z]{30,}\b")


@dataclass(frozen=True, slots=True)
class AlignedPart:
    """A part on both sides, None where a side does not have it."""

    key: PartKey
    base: Part | None
    new: Part | None

    @property
    def base_s(self) -> float:
        """Its time in base, in seconds a step."""
        return self.base.mean_s if self.base else 0.0

    @property
    def new_s(self) -> float:
        """Its time in new."""
        return self.new.mean_s if self.new else 0.0

    @property
    def change_s(self) -> float:
        """By how much it became longer."""
        return self.new_s - self.base_s

    @property
    def counts(self) -> tuple[float, float]:
        """How often it occurs in a step of base and of new."""
        return self.base.count if self.base else 0.0, self.new.count if self.new else 0.0


@dataclass(frozen=True, slots=True)
class Aligned:
    """The rows of two traces; `renamed` maps layers of new to those of base that they are paired with."""

    rows: tuple[AlignedPart, ...]
    renamed: Mapping[str, str]


def aligned(base: StepParts, new: StepParts, *, same_backend: bool) -> Aligned:
    """Return the paired parts of base and new."""
    renamed = _renamed(base.layers, new.layers)
    sides = [_keyed(base, {}, same_backend), _keyed(new, renamed, same_backend)]
    keys = dict.fromkeys(key for side in sides for key in side)
    return Aligned(tuple(AlignedPart(key, sides[0].get(key), sides[1].get(key)) for key in keys), renamed)


def half_width_s(rows: Iterable[AlignedPart]) -> float | None:
    """Return the half-width of the 95 % interval of the change of these rows, from the scatter between the steps.

    None with fewer than two steps on a side. It does not contain the scatter between processes.
    """
    rows = list(rows)
    sides = [_steps([row.base for row in rows]), _steps([row.new for row in rows])]
    if any(len(side) == 1 for side in sides) or not any(sides):
        return None
    errors = [(statistics.variance(side) / len(side), len(side) - 1) for side in sides if side]
    if not any(variance for variance, _ in errors):
        return 0.0
    error_s, degrees = summed(errors)  # the sides may scatter differently
    return t_quantile(degrees, CONFIDENCE) * error_s


def _steps(parts: Sequence[Part | None]) -> list[float]:
    """Return the sum of these parts in each step."""
    found = [part.times_s for part in parts if part is not None]
    return [sum(times_s) for times_s in zip(*found, strict=True)]


def _keyed(side: StepParts, renamed: Mapping[str, str], same_backend: bool) -> dict[PartKey, Part]:
    found: dict[PartKey, Part] = {}
    for key, part in side.parts.items():
        layer = renamed.get(key.layer, key.layer) if key.layer else None
        op = _HASH.sub("...", key.op) if key.op and same_backend else None
        place = (
            key.place if same_backend or key.place not in WORKING - {TrackPlace.COMMUNICATION} else TrackPlace.COMPUTE
        )
        own = PartKey(place, key.phase, layer, op)
        found[own] = _sum(found[own], part) if own in found else part
    return found


def _sum(one: Part, other: Part) -> Part:
    return Part(tuple(map(sum, zip(one.times_s, other.times_s, strict=True))), one.count + other.count)


def _renamed(base: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """Return the layers of new that have another name in base, where the order of the layers identifies them."""
    common = set(base) & set(new)
    found: dict[str, str] = {}
    for kind, start, end, new_start, new_end in SequenceMatcher(None, base, new, autojunk=False).get_opcodes():
        pairs = zip(base[start:end], new[new_start:new_end], strict=False)
        if kind == "replace" and end - start == new_end - new_start:
            found |= {now: then for then, now in pairs if not common & {then, now}}
    return found

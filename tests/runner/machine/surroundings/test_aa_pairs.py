"""Identical interleaved arms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from keras_matrix.analysis.surroundings.disturbance import Cause, Disturbed
from keras_matrix.runner.errors import InfrastructureError
from keras_matrix.runner.machine.surroundings.aa_pairs import (
    TURNS,
    ArmProcess,
    PairResult,
    calibrate,
    interleaved,
    measure,
)
from keras_matrix.runner.machine.surroundings.counters import Sampler
from tests.fakes.machine import STAT, machine, write


@dataclass
class World:
    """A clock, what the arms did, and a synthetic machine whose one CPU is always busy."""

    root: Path
    now_s: float = 0.0
    log: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def go_on(self, seconds: float) -> None:
        self.now_s += seconds
        write(self.root, "/proc/stat", STAT.replace("cpu0 100", f"cpu0 {100 + round(100 * self.now_s)}"))


@dataclass
class FakeArm:
    """Takes the seconds it is given, one after the other, and uses the share `own` of the CPU meanwhile."""

    name: str
    world: World
    seconds: list[float]
    own: float = 1.0

    def turn(self, steps: int) -> tuple[float, float]:
        self.world.log.append(f"{self.name}{steps}")
        taken_s = self.seconds.pop(0)
        self.world.go_on(taken_s)
        return taken_s, taken_s * self.own


def pair(
    world: World, seconds: tuple[list[float], list[float]], own: float = 1.0, second_first: bool = False
) -> PairResult:
    machine(world.root)
    arms = (FakeArm("A", world, seconds[0], own), FakeArm("B", world, seconds[1], own))
    with Sampler([0], world.root, world.clock) as sampler:
        return interleaved(cast(tuple[ArmProcess, ArmProcess], arms), 3, second_first, sampler)


@pytest.mark.parametrize(
    ("second_first", "expected"),
    [(False, "A B A B B A A B B A"), (True, "A B B A A B B A A B")],
)
def test_order_is_reversed_at_every_turn(tmp_path: Path, second_first: bool, expected: str) -> None:
    world = World(tmp_path)
    pair(world, ([1.0] * 5, [1.0] * 5), second_first=second_first)
    assert world.log == [f"{name}3" for name in expected.split()]


def test_a_pair_s_figure_is_the_mean_log_ratio_of_its_turns_without_the_warm_up(tmp_path: Path) -> None:
    found = pair(World(tmp_path), ([9.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0, 0.5]))
    assert len(found.turn_times_s) == TURNS
    assert found.log_ratio == pytest.approx((math.log(2.0) + math.log(0.5)) / 4)
    assert found.disturbed is None


def test_pair_disturbed_by_another_process_is_marked(tmp_path: Path) -> None:
    found = pair(World(tmp_path), ([1.0] * 5, [1.0] * 5), own=0.9)
    assert isinstance(found.disturbed, Disturbed)
    assert found.disturbed.cause is Cause.OTHER_CPU


@pytest.mark.process
def test_ended_arm_is_reported_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(InfrastructureError, match="a measuring process"):
        calibrate(1)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_gives_no_pairs(seconds: float) -> None:
    assert measure(seconds, [0], 0, lambda count: None) == []

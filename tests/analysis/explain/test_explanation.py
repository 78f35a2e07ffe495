"""What explains a change of a step time, on synthetic traces with a known difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_matrix.analysis.explanation import Explanation, Side, TracedSide, explain, without_profiler
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.step_parts import StepParts
from keras_matrix.records.traces.neutral import TrackKind
from keras_matrix.runner.cli.render.explain_text import lines
from tests.analysis.explain.traced import Operation, parts, side

SLOWER = Estimate(1.5, 1.4, 1.6, 5)


def op(name: str, us: float, phase: str | None = "forward", layer: str | None = None) -> Operation:
    return name, us, {"phase": phase, "layer": layer}


MODEL = (op("dot", 100, layer="a"), op("dot", 200, layer="b"), op("dot", 300, "backward", "b"), op("sub", 50, "update"))


def model(*more: Operation, step_us: float = 800, **changes: Any) -> StepParts:
    return parts(step_us, *MODEL, *more, **changes)


def explained(base: Side | StepParts, new: Side | StepParts, ratio: Estimate = SLOWER) -> Explanation:
    sides = [one if isinstance(one, Side) else side(one) for one in (base, new)]
    return explain(*sides, ratio)


def titles(found: Explanation) -> list[str]:
    return [one.title for one in found.differences]


def adds_up(found: Explanation) -> bool:
    total_s = sum(one.change_s for one in found.differences) + found.others_s + found.unexplained_s
    shares = sum(one.share for one in found.differences) + found.share(found.others_s + found.unexplained_s)
    return total_s == pytest.approx(found.change_s) and shares == pytest.approx(1)


def test_layer_with_twice_the_products_is_the_first_difference_with_its_share() -> None:
    """Mutation: `layers.claims` returns nothing."""
    found = explained(model(), model(op("dot", 200, layer="b"), op("dot", 300, "backward", "b"), step_us=1300))
    first = found.differences[0]
    assert (first.kind, first.title) == ("layer", "layer b: matrix product 2 -> 4 a step (dot)")
    assert first.change_s == pytest.approx(500e-6)
    assert first.share == pytest.approx(1)
    assert "forward 200 us -> 400 us; backward 300 us -> 600 us" in first.details
    assert adds_up(found)


def test_three_largest_differences_are_listed_and_the_others_are_one_sum() -> None:
    """Mutation: `SHOWN` is 2 or 10."""
    base = [op("dot", 100, layer=name) for name in "abcde"]
    slower = [op("dot", 100 + more, layer=name) for name, more in zip("abcde", (50, 40, 30, 20, 10), strict=True)]
    found = explained(parts(500, *base), parts(650, *slower), Estimate(1.3, 1.2, 1.4, 5))
    assert [one.change_s for one in found.differences] == pytest.approx([50e-6, 40e-6, 30e-6])
    assert (found.others, found.others_s) == (3, pytest.approx(30e-6))  # with the gaps, which are equal
    printed = "\n".join(lines(("one", "other"), found))
    assert "3 other differences" in printed
    assert adds_up(found)


def test_additional_copy_is_named_as_one() -> None:
    found = explained(model(), model(op("fusion (concatenate)", 400, layer="c"), step_us=1200))
    assert titles(found) == ["layer c: copy 0 -> 1 a step (fusion (concatenate))"]
    assert found.differences[0].share == pytest.approx(1)


def test_renamed_kernel_of_an_optimizer_is_one_difference() -> None:
    """Mutation: `operations.claims` groups by the operation's name."""
    base = parts(800, *MODEL[:3], op("sub_v1", 50, "update"))
    new = parts(1000, *MODEL[:3], op("sub_v2", 250, "update"))
    found = explained(base, new)
    assert titles(found) == ["optimizer: elementwise 1 a step (sub_v2, sub_v1)"]
    assert found.differences[0].change_s == pytest.approx(200e-6)


def test_step_that_is_no_longer_compiled_is_one_difference_with_its_gaps() -> None:
    """Mutation: `compile_mode.claims` leaves the gaps to their own kind."""
    eager = parts(2000, *(op(f"mini_{n}", 50, None) for n in range(20)))
    found = explained(model(), side(eager, jit=False))
    assert [(one.kind, one.title) for one in found.differences] == [
        ("compilation", "compilation of the step: jit -> no jit")
    ]
    assert found.differences[0].share == pytest.approx(1)
    assert "4 -> 20 operations a step" in found.differences[0].details
    assert adds_up(found)


def test_steps_that_are_compiled_differently_have_each_their_own_profiler_cost() -> None:
    """Mutation: `explain` gives `_without_profiler` whether the backends are the same only."""
    eager = parts(5000, *(op(f"mini_{n}", 200, None) for n in range(20)))
    found = explained(model(), side(eager, step_time_s=2000e-6, jit=False))
    base_s, new_s = found.profiler_costs_s
    assert base_s == 0
    assert new_s > 0
    assert found.differences[0].share == pytest.approx(1, abs=0.01)


def test_input_gaps_and_the_time_between_steps_are_differences_of_their_own() -> None:
    base = model()
    found = explained(base, model(step_us=1000))
    assert [one.kind for one in found.differences] == ["gaps"]
    with_input = model(("fetch", 100, {"phase": "input"}), step_us=900)
    assert [one.kind for one in explained(base, with_input).differences] == ["input"]
    collective = model(("all-reduce", 100, {"kind": TrackKind.COMMUNICATION}), step_us=900)
    assert [one.kind for one in explained(base, collective).differences] == ["communication"]


def test_two_backends_are_compared_by_layer_and_phase_and_the_rest_is_unexplained() -> None:
    new = parts(1000, op("aten::mm", 600, layer="b"), op("unknown", 200, None), backend="torch")
    found = explained(model(), new)
    # The gaps, 150 and 200 us, and those two; the optimizer, 50 us, is the fourth.
    assert sorted(titles(found)[:2]) == ["layer a: 100 us -> 0 s", "layer b: 500 us -> 600 us"]
    assert found.unexplained_s == pytest.approx(200e-6)
    assert "jax and torch have different operations" in found.caveats[-1]
    assert adds_up(found)


def test_nothing_is_explained_if_the_interval_contains_1() -> None:
    """Mutation: `explain` ignores the interval."""
    found = explained(model(), model(op("dot", 200, layer="b"), step_us=1000), Estimate(1.02, 0.97, 1.07, 5))
    assert found.nothing
    assert found.differences == ()


def test_difference_between_processes_is_unexplained() -> None:
    base, new = side(model()), side(model(op("dot", 200, layer="b"), step_us=1000))
    slow = replace(new.traced, times=replace(new.traced.times, step_time_s=2 * new.step_time_s))
    found = explained(base, replace(new, records=[new.traced, slow, slow]))
    assert found.differences[0].change_s == pytest.approx(200e-6)
    assert found.unexplained_s > 300e-6
    assert adds_up(found)


def test_trace_of_a_busier_moment_than_the_measurement_is_a_caveat() -> None:
    base, new = side(model()), side(model(step_us=1600), step_time_s=800e-6)
    found = explained(base, new)
    assert found.caveats[0].startswith("the traced steps of new took 2.00 times")
    assert explained(base, base).caveats == ()


def test_change_within_the_scatter_of_the_steps_is_marked_as_unclear() -> None:
    noisy = replace(
        model(), parts={key: replace(part, times_s=(0.0, 2 * part.mean_s) * 2) for key, part in model().parts.items()}
    )
    clear, unclear = (explained(base, model(op("dot", 9, layer="b"), step_us=809)) for base in (model(), noisy))
    assert [one.is_clear for one in clear.differences if one.kind == "layer"] == [True]
    assert not any(one.is_clear for one in unclear.differences if one.kind == "layer")


def test_same_profiler_cost_of_each_event_is_removed_from_both_sides() -> None:
    """Mutation: `_cheaper` returns the parts as they are."""
    cost_us = 10
    base = parts(500, *(op("dot", 40 + cost_us, layer="a") for _ in range(4)), jitter_us=0)
    new = parts(1000, *(op("dot", 40 + cost_us, layer="a") for _ in range(8)), jitter_us=0)
    measured_s = [found.step_time_s - cost_us * count * 1e-6 for found, count in ((base, 4 + 1), (new, 8 + 1))]
    found, cost_s = without_profiler(
        [TracedSide(one, time_s) for one, time_s in zip((base, new), measured_s, strict=True)]
    )
    assert cost_s == pytest.approx(cost_us * 1e-6)
    assert [one.step_time_s for one in found] == pytest.approx(measured_s)


def test_profiler_cost_on_a_device_is_removed_from_what_the_host_does() -> None:
    found, _ = without_profiler([TracedSide(parts(500, op("kernel", 400), device="gpu"), 450e-6)])
    assert sum(part.mean_s for key, part in found[0].parts.items() if key.op) == pytest.approx(400e-6, abs=1e-6)


def test_trace_that_is_faster_than_the_measurement_is_unchanged() -> None:
    found = model()
    assert without_profiler([TracedSide(found, 2e-3)]) == ([found], 0.0)

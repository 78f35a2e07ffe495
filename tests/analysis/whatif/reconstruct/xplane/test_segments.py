"""Runs of operations as segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.whatif.reconstruct.xplane.profiles import Op, before, find, graph, names, step, us, write_jax


def files(path: Path) -> Path:
    """Two devices that compute forward and backward, sum, and update; the first backward operation follows a gap."""
    marks = [step(1, 0, 60), step(2, 60, 120)]
    ops = []
    for number in (1, 2):
        at = 60 * (number - 1)
        for device in (0, 1):
            ops += [
                Op("dot.1", at + 1, at + 5, number, device),
                Op("copy.1", at + 6, at + 8, number, device),
                Op("dot.2", at + 8, at + 12, number, device),
                Op("dot.3", at + 12, at + 18, number, device),
                Op("all-reduce", at + 20, at + 40, number, device),
                Op("sub.1", at + 40, at + 50, number, device),
            ]
    return write_jax(path / "epoch2.worker0.xplane.pb", marks, ops)


def test_a_segment_is_a_run_of_a_phase_and_a_layer(tmp_path: Path) -> None:
    made = graph(files(tmp_path), level="segments")
    assert names(made) == ["launch", "forward dense", "dot.2", "dot.3", "all-reduce", "sub.1", "return"]
    assert made.header.level == "segments"


def test_the_time_of_a_segment_is_that_of_its_operations_without_gaps(tmp_path: Path) -> None:
    made = graph(files(tmp_path), level="segments")
    segment = find(made, "forward dense")
    assert (us(segment.durations_ns), us(segment.gaps_ns)) == ([6, 6], [1, 1])
    assert (segment.phase, segment.layer, segment.bytes) == ("forward", "dense", None)


def test_segments_keep_dependencies_gradients_and_coverage(tmp_path: Path) -> None:
    made, operations = graph(files(tmp_path), level="segments"), graph(files(tmp_path))
    assert before(made, "all-reduce") == {(0, "dot.2"), (0, "dot.3")}
    assert (1, "sub.1") in before(made, "return")
    assert [one.gradient_of for one in made.nodes if one.gradient_of] == ["dense", "head"] * 2
    assert made.header.coverage == pytest.approx(operations.header.coverage)
    assert made.header.step_times_s == operations.header.step_times_s

"""Calibrations fitted to measured step times that another calibration made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.corrections import recalibrated, with_link
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.verify import Measurement, Prediction, PredictionVerdict, judge, judge_again
from keras_matrix.analysis.whatif.what_ifs import registry
from tests.analysis.whatif.hand_made import data_parallel, link

SETTINGS = ("tensor_fusion=each", "tensor_fusion=2,2,2,2", "tensor_fusion=4,4", "tensor_fusion=8,")
ALPHA_S, BETA_S = 400e-9, 0.2e-9


def traced(alpha_s: float = ALPHA_S, beta_s: float = BETA_S) -> Graph:
    """A step of eight layers with a sum of 600 for each, and this calibration of its link."""
    graph = data_parallel(layers=8)
    nodes = [node if node.collective is None else replace(node, durations_ns=(600,)) for node in graph.nodes]
    return graph.with_nodes(nodes, link=link(alpha_s, beta_s))


def time_s(graph: Graph, text: str) -> float:
    return step_time_s(registry.apply(graph, [registry.read(text)]))


def test_a_calibration_is_found_again_from_the_times_that_it_made() -> None:
    truth = {text: time_s(traced(), text) for text in SETTINGS}
    wrong = traced(alpha_s=10 * ALPHA_S)
    found = recalibrated(wrong, [((text,), truth[text]) for text in SETTINGS[:2] + SETTINGS[3:]])
    assert "recalibrated by 3 measured settings" in found.source
    held_out = SETTINGS[2]
    before = abs(time_s(wrong, held_out) / truth[held_out] - 1)
    after = abs(time_s(with_link(wrong, found), held_out) / truth[held_out] - 1)
    assert before > 0.1
    assert after < 0.01


def test_a_wrong_alpha_is_refuted_and_verified_after_the_recalibration() -> None:
    truth = {text: time_s(traced(), text) for text in SETTINGS}
    wrong = traced(alpha_s=10 * ALPHA_S)
    measurements = {
        text: Measurement({at: time * (1 + 0.001 * (at - 2)) for at in range(5)}) for text, time in truth.items()
    }

    def predictions(graph: Graph) -> dict[str, Prediction]:
        times = {text: time_s(graph, text) for text in SETTINGS}
        return {text: Prediction(time, time, time) for text, time in times.items()}

    first = judge(predictions(wrong), measurements)
    fitted = [SETTINGS[0], SETTINGS[3]]
    right = with_link(wrong, recalibrated(wrong, [((text,), truth[text]) for text in fitted]))
    again = judge_again(first, predictions(right), measurements, right.header.link.source, fitted)  # type: ignore[union-attr]
    assert (first.verdict, again.verdict) == (PredictionVerdict.REFUTED, PredictionVerdict.VERIFIED)
    assert [row.name for row in again.rounds[1].rows if not row.fitted] == list(SETTINGS[1:3])


def test_a_right_calibration_stays() -> None:
    graph = traced()
    found = recalibrated(graph, [((text,), time_s(graph, text)) for text in SETTINGS])
    assert (found.alpha_s, found.beta_s_per_byte) == (pytest.approx(ALPHA_S), pytest.approx(BETA_S))

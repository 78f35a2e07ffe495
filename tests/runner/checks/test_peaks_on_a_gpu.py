"""FLOPs and peaks on a real GPU: fused operations run, and the rates reach the stated ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_matrix.analysis.roofline import datasheet
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import decode
from keras_matrix.records.instruments.peaks import PeakAnswer
from keras_matrix.records.instruments.work import CountAnswer, CountOrder, Target
from keras_matrix.runner.checks.peaks import Effort, order_for
from keras_matrix.runner.executors.probe import probe_settings
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.matrix.catalog import CATALOG_PATH

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="there is no NVIDIA GPU here"),
]


def probe(backend: str) -> ProcessProbe:
    found = ProcessProbe()
    if why := found.missing(backend):
        pytest.skip(f"{backend}: {why}")
    return found


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_recurrent_layers_on_a_gpu_have_the_catalogs_flops(backend: str) -> None:
    entries = json.loads(CATALOG_PATH.read_text(encoding="utf-8"))["workloads"]
    order = CountOrder([Target(name, {}) for name in ("lstm", "gru")])
    raw = probe(backend).ask("keras_matrix.models.flops", order, probe_settings(backend, "gpu"), 300)
    works = decode(CountAnswer, raw, "answer").works
    expected = {name: entries[name]["forward_flops_per_sample"] for name in ("lstm", "gru")}
    assert {work.workload: work.forward_flops_per_sample for work in works} == expected


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_triad_on_a_gpu_reaches_70_to_102_percent_of_the_stated_memory_rate(backend: str) -> None:
    settings = probe_settings(backend, "gpu")
    raw = probe(backend).ask("keras_matrix.runner.cell.peaks", order_for(settings, Effort()), settings, 300)
    answer = decode(PeakAnswer, raw, "answer")
    sheet = datasheet(answer.device.model if answer.device else None)
    if sheet is None:
        pytest.skip(f"no data sheet of {answer.device}")
    (triad,) = [stream for stream in answer.streams if stream.kernel == "triad"]
    assert 0.70 <= triad.byte_per_s.best / sheet.memory_byte_per_s <= 1.02

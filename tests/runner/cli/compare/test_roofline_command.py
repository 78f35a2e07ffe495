"""`runner roofline` from end to end, with synthetic cells, peaks and counts; then small with real backends."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.analysis.comparison.table import table
from keras_matrix.analysis.roofline import Roofline
from keras_matrix.records import run_files
from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.instruments.peaks import Gemm, PeakAnswer, Stream, Timed
from keras_matrix.records.instruments.work import CountAnswer, CountOrder, FlopCheck, Work
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results
from keras_matrix.runner.checks import peaks
from keras_matrix.runner.checks import roofline as runs
from keras_matrix.runner.checks.peaks import MODULE as PEAKS
from keras_matrix.runner.checks.peaks import Effort, order_for
from keras_matrix.runner.checks.roofline import MODULE as FLOPS
from keras_matrix.runner.checks.roofline import source_digest
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.executors.probe import ProbeFailed, probe_settings
from keras_matrix.runner.executors.process.probe import ProcessProbe
from keras_matrix.runner.machine import machine
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor
from tests.golden import Golden
from tests.transcripts import Transcript

MATRIX = """\
version: 1
backends: [tensorflow, jax, torch]
cells:
  - workload: mnist_mlp
  - workload: gru
    params: {units: 64}
  - workload: their_module:build
"""
RATES = {"tensorflow": 400e9, "jax": 300e9, "torch": 200e9, "numpy": 0.0}


@dataclass
class FakeProbe:
    """A fake machine of 400 GFLOP/s and 20 GB/s, and workloads of 1 MFLOP per sample."""

    asked: list[str] = field(default_factory=list)
    wrong: bool = False

    def missing(self, backend: str) -> str | None:
        return None

    def ask(self, module: str, order: Any, settings: Settings, timeout_s: float) -> Any:
        self.asked.append(module)
        if module == PEAKS:
            return to_json(self._peaks(order, settings))
        return to_json(self._counts(order, settings.backend))

    def _peaks(self, order: Any, settings: Settings) -> PeakAnswer:
        name, threads = settings.backend, 1 if settings.threads == 1 else machine.detect().logical_cpus
        gemms = [Gemm(name, "cpu", p, threads, 1024, Timed([RATES[name]], 1)) for p in order.precisions]
        streams = [Stream(name, "cpu", k, threads, 1 << 27, Timed([20e9], 1)) for k in order.kernels]
        return PeakAnswer(gemms, streams, {}, {}, None, 1 << 25)

    def _counts(self, order: CountOrder, backend: str) -> CountAnswer:
        works = [Work(t.workload, t.params, 1_000_000, 1000, 1000, 0, 1000, 10, 100, backend) for t in order.targets]
        ours = 1100 if self.wrong else 1000
        checks = [
            FlopCheck(
                t.workload, t.params, backend, 32, 1000, 2800, ours, ours, 2800.0, None, False, 10, "its profiler"
            )
            for t in order.checks
        ]
        return CountAnswer(works, checks, {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    return tmp_path


@pytest.fixture
def measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    main(["--matrix", "matrix.yaml"], Seams(executor=FakeExecutor()))
    capsys.readouterr()
    return folder


def roofline(*arguments: str, probe: FakeProbe | None = None) -> int:
    return main(["roofline", *arguments], Seams(probe=probe or FakeProbe()))


def document(capsys: pytest.CaptureFixture[str], *arguments: str, probe: FakeProbe | None = None) -> Any:
    assert roofline("--json", *arguments, probe=probe) == 0
    return json.loads(capsys.readouterr().out)


def test_each_cell_gets_its_share_of_the_machines_best(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys)
    cells = {(c["title"].split(" ")[0], c["backend"]): c for c in found["cells"]}
    one = cells["gru", "torch"]
    assert one["flops_per_step"] == 3 * 32 * 1_000_000
    assert one["share_of_peak"] == pytest.approx(96e6 / 0.040 / 400e9, rel=0.02)
    assert one["share_of_own_gemm"] == pytest.approx(2 * one["share_of_peak"])
    assert one["mfu"] is None
    assert found["run_id"] == Results(measured / "results").runs()[-1].run_id


def test_flops_of_the_catalog_are_used(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {c["flops_per_step"] for c in document(capsys)["cells"] if c["title"] == "mnist_mlp"}
    assert found == {3 * 32 * 7_917_568}


def test_user_workload_has_no_share_with_the_reason(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = [c for c in document(capsys)["cells"] if c["title"].startswith("their_module")]
    assert {(c["share_of_peak"], c["flops_per_step"], c["note"]) for c in theirs} == {(None, None, "FLOPs not known")}


def test_peaks_and_counts_are_made_once_and_peaks_again_on_demand(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = FakeProbe()
    document(capsys, probe=probe)
    first = len(probe.asked)
    assert (probe.asked.count(FLOPS), first > 6) == (1, True)
    document(capsys, probe=probe)
    assert len(probe.asked) == first
    document(capsys, "--measure", "--rounds", "1", probe=probe)
    assert set(probe.asked[first:]) == {PEAKS}


def test_picture_is_written_to_the_requested_path(measured: Path) -> None:
    assert roofline("--out", "picture.svg") == 0
    assert ET.parse(measured / "picture.svg").getroot().tag.endswith("svg")


def test_before_the_first_run_the_machine_alone_is_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--out", "machine.html")
    assert (found["run_id"], found["cells"]) == (None, [])
    assert found["own_gemms"] != []
    assert (folder / "machine.html").is_file()


def test_peaks_are_measured_where_the_machine_has_a_gpu_and_none_is_visible(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("keras_matrix.runner.machine.machine._gpus", lambda: (["NVIDIA H100 80GB HBM3"], "580.65.06"))
    assert document(capsys, "--out", "machine.html")["peaks"]["gpu_uuid"] is None


def test_stored_reads_earlier_measurements_and_measures_nothing(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stored() -> Roofline:
        files = run_files.read(Results(measured / "results").runs()[-1])
        return runs.roofline_of(table(files.records), run_files.read_measurements(files, source_digest()))

    before = stored()
    assert {share.share_of_peak for share in before.shares} == {None}
    assert {s.flops_per_step for s in before.shares if s.title == "mnist_mlp"} == {3 * 32 * 7_917_568}
    document(capsys)
    after = stored()
    assert None not in {share.share_of_peak for share in after.shares if ":" not in share.title}


def test_run_of_another_machine_is_not_compared_with_these_peaks(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Results(measured / "results").runs()[-1]
    about = run.about()
    about["machine"]["host_id"] = "f" * 16
    (run.folder / "run.json").write_text(json.dumps(about))
    probe = FakeProbe()
    assert document(capsys, probe=probe)["peaks"] is None
    assert PEAKS not in probe.asked


def test_the_check_of_flops_fails_where_a_difference_has_no_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roofline("--check-flops", probe=FakeProbe(wrong=True)) == 1
    capsys.readouterr()
    assert roofline("--check-flops", "mnist_mlp", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["checks"]) == len(TRAINING_BACKENDS)


@pytest.mark.alone  # on a busy machine it makes fewer calls than it must
@pytest.mark.process
@pytest.mark.one_backend("jax")
@pytest.mark.parametrize("backend", [*TRAINING_BACKENDS, "numpy"])
def test_real_backend_is_timed_on_the_requested_cpus(backend: str) -> None:
    effort = Effort(rounds=1, sizes=(256,), array_bytes=8 << 20, least_calls=3, window_s=0.01)
    asked = order_for(probe_settings(backend, threads=1), effort)
    answer = decode(PeakAnswer, ProcessProbe().ask(PEAKS, asked, asked.settings, 200))
    assert answer.refused == {}
    assert [(g.backend, g.threads) for g in answer.gemms] == [(backend, 1)] * len(asked.precisions)
    assert {g.precision for g in answer.gemms} == set(asked.precisions)
    assert {(s.by, s.kernel, s.threads) for s in answer.streams} == {(backend, kernel, 1) for kernel in asked.kernels}
    rates = [gemm.flop_per_s for gemm in answer.gemms] + [stream.byte_per_s for stream in answer.streams]
    assert all(1e7 < rate.best < 1e14 and len(rate.rates) >= 3 for rate in rates)


@pytest.mark.process
def test_failed_probe_is_reported_with_its_exit_and_last_output() -> None:
    with pytest.raises(ProbeFailed, match=r"no_such_module on numpy: ended with exit code 1: .*No module named"):
        ProcessProbe().ask("no_such_module", [], probe_settings("numpy"), 60)
    with pytest.raises(ProbeFailed, match=r"took more than 0.01 s"):
        ProcessProbe().ask("keras_matrix.runner.cell.peaks", [], probe_settings("numpy"), 0.01)


def test_what_is_printed_of_a_roofline(
    folder: Path, monkeypatch: pytest.MonkeyPatch, transcript: Transcript, golden: Golden
) -> None:
    monkeypatch.setattr(peaks, "secrets", SimpleNamespace(randbits=lambda bits: 1))  # the order of the processes
    monkeypatch.setattr(peaks, "_watched", lambda work: work())  # what other programs do meanwhile
    main(["--matrix", "matrix.yaml", "--repeats", "5"], Seams(executor=FakeExecutor()))
    transcript.run("roofline --rounds 1", seams=Seams(probe=FakeProbe()))
    run = Results(folder / "results").runs()[-1]
    about = run.about()
    about["machine"]["host_id"] = "f" * 16
    (run.folder / "run.json").write_text(json.dumps(about))
    transcript.note("a run of another machine")
    transcript.run("roofline", seams=Seams(probe=FakeProbe()))
    transcript.note("counts that differ without a known reason")
    transcript.run("roofline --check-flops mnist_mlp", seams=Seams(probe=FakeProbe(wrong=True)))
    transcript.run("roofline --out picture.png", "roofline --rounds 0", "roofline --check-flops mnist_mpl")
    transcript.run("roofline --run 20200101T000000Z-000000")
    golden.check("roofline.txt", transcript.text)

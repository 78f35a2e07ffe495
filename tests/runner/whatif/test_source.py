"""Which files are a trace, and what its graph gets from the record of the traced cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.whatif.collectives import time_s
from keras_matrix.analysis.whatif.graph import Graph, LinkCalibration
from keras_matrix.records.fc import communication
from keras_matrix.records.fc.communication import TimedCollective
from keras_matrix.records.schema import Record
from keras_matrix.runner.matrix.reader import expand, parse
from keras_matrix.runner.whatif import source
from keras_matrix.runner.whatif.source import TraceFiles, facts_of, files_of, graph_of
from tests.conftest import make_record
from tests.runner.whatif.graphs import data_parallel, two_workers

FC = """\
version: 1
backends: [tensorflow]
cells:
  - {workload: fc, mode: fc_data, workers: 2, level: 2, network: 200mbit, weight_size: 512, batch_size: 64}
"""


def touched(folder: Path, *names: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return [path.name for path in files_of([folder])]


def test_of_several_epochs_the_last_one_is_used_by_worker(tmp_path: Path) -> None:
    names = [f"epoch{epoch}.worker{worker}.json" for epoch in (2, 10) for worker in (0, 1, 11)]
    found = touched(tmp_path, *names, "collectives.json")
    assert found == ["epoch10.worker0.json", "epoch10.worker1.json", "epoch10.worker11.json"]


def test_a_folder_of_other_profiles_is_one_file_per_rank(tmp_path: Path) -> None:
    found = touched(tmp_path, "rank0.json.gz", "rank1.json.gz", "notes.txt", "collectives.json")
    assert found == ["rank0.json.gz", "rank1.json.gz"]


def test_the_folder_of_a_trace_has_its_files_in_native(tmp_path: Path) -> None:
    touched(tmp_path / "native", "epoch1.worker0.xplane.pb")
    (tmp_path / "trace.json.gz").touch()
    assert files_of([tmp_path]) == [tmp_path / "native" / "epoch1.worker0.xplane.pb"]


def record() -> Record:
    (cell,) = expand(parse(Path("m.yaml"), FC.encode()))
    found = make_record(0.1, settings=cell.settings, versions={"keras": "3.15"})
    assert found.resolved is not None
    return replace(found, resolved=replace(found.resolved, cpus=4))


def test_facts_come_from_the_record_of_the_cell() -> None:
    facts = facts_of(record())
    assert facts["cores"] == 4
    assert facts["threads"] == 2
    assert facts["gradient_bytes"] == {"layer_0": 512 * 512 * 4, "layer_1": 512 * 512 * 4, "layer_2": 512 * 4}
    assert facts["settings"]["network"] == "200mbit"
    assert facts["settings"]["batch_size"] == 64
    assert facts["versions"] == {"keras": "3.15"}


def test_the_rate_of_a_link_is_that_of_the_cell() -> None:
    settings = record().settings
    assert source.rate_of(settings) == 200e6
    assert source.rate_of(replace(settings, params={**settings.params, "network": "local"})) is None
    assert source.rate_of(None) is None


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let operations err by 14 %, and segments by less; return the facts of each build."""
    given: list[dict[str, Any]] = []

    def graph_of(paths: Sequence[Path], **facts: Any) -> Graph:
        given.append(facts)
        graph = two_workers()
        times = graph.header.step_times_s if facts["level"] == "operations" else (0.018, 0.018, 0.018)
        return replace(graph, header=replace(graph.header, step_times_s=times, level=facts["level"]))

    monkeypatch.setattr(source, "graph_of_files", graph_of)
    return given


def test_segments_are_used_where_operations_predict_steps_badly(built: list[dict[str, Any]]) -> None:
    graph = graph_of(TraceFiles((Path("a.xplane.pb"),)))
    assert [one["level"] for one in built] == ["operations", "segments"]
    assert graph.header.level == "segments"
    assert graph.header.caveats[-1].startswith("operations predict the next step with a mean error of 14.")


@pytest.mark.parametrize(("name", "level"), [("a.xplane.pb", "operations"), ("a.json", None)])
def test_the_level_is_not_changed_if_it_is_given_or_the_file_has_one(
    built: list[dict[str, Any]], name: str, level: str | None
) -> None:
    assert graph_of(TraceFiles((Path(name),)), level=level).header.level == "operations"
    assert len(built) == 1


def test_a_calibration_next_to_the_files_is_fitted(built: list[dict[str, Any]], tmp_path: Path) -> None:
    """alpha 1 ms, beta 4 ns a byte."""
    times = [
        {"operation": "all_reduce", "ranks": 2, "bytes": size, "seconds": 1e-3 + 4e-9 * size} for size in (0, 10**6)
    ]
    (tmp_path / "collectives.json").write_text(json.dumps(times))
    link = graph_of(TraceFiles((tmp_path / "a.json",), record())).header.link
    assert link is not None
    assert (link.alpha_s, link.beta_s_per_byte) == pytest.approx((1e-3, 4e-9), rel=1e-6)
    assert link.rate_bits_per_s == 200e6


@pytest.mark.parametrize(("factor", "usable"), [(1.0, True), (1.9, True), (0.4, False), (3.0, False)])
def test_a_stored_calibration_that_the_traced_collectives_contradict_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float, usable: bool
) -> None:
    """The traced sums take 0.5 ms and 4 ns a byte."""
    graph = data_parallel(LinkCalibration(0.5e-3, 4e-9, 2, "the traced link"))
    unknown = replace(graph, header=replace(graph.header, link=None))
    monkeypatch.setattr(source, "graph_of_files", lambda paths, **facts: unknown)
    times = [TimedCollective("all_reduce", 2, size, (0.5e-3 + 4e-9 * size) / factor) for size in (0, 10**6)]
    communication.write(tmp_path, times)
    header = graph_of(TraceFiles((tmp_path / "a.json",))).header
    assert (header.link is not None) is usable
    if not usable:
        assert f"the traced collectives took {factor:g} times as long as collectives.json says" in header.caveats[-1]


def test_a_graph_of_a_cell_has_its_settings(built: list[dict[str, Any]]) -> None:
    own = record()
    graph = graph_of(TraceFiles((Path("a.json"),), own))
    assert graph.header.source == f"cell {own.cell_id} of {own.run_id}"
    assert graph.header.settings["workers"] == 2
    assert graph.header.backend == "tensorflow"
    assert graph.header.cores == 2


@pytest.mark.parametrize(
    ("sleeps", "cores"), [({}, 1.0), ({"forward_sleep_ms": 4.0}, 0.0), ({"backward_sleep_ms": 4.0}, 0.0)]
)
@pytest.mark.parametrize("name", ["io_callback.78", "gradient_tape/forward/layer_1/PyFunc", "forward/layer_0/PyFunc_1"])
def test_layers_that_sleep_keep_no_core_busy(
    monkeypatch: pytest.MonkeyPatch, name: str, sleeps: dict[str, float], cores: float
) -> None:
    """Four sleeping workers would otherwise share the two cores of the machine."""
    graph = data_parallel(LinkCalibration(0.5e-3, 4e-9, 2, "a link"))
    first, *others = graph.nodes
    named = replace(graph, nodes=(replace(first, name=name, cores=1.0), *others))
    monkeypatch.setattr(source, "graph_of_files", lambda paths, **facts: named)
    own = record()
    slept = replace(own, settings=replace(own.settings, params={**own.settings.params, **sleeps}))
    found = graph_of(TraceFiles((Path("a.json"),), slept)).nodes
    assert found[0].cores == cores
    assert [node.cores for node in found[1:]] == [node.cores for node in others]


def test_a_calibration_is_not_judged_by_time_in_which_sums_shared_the_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four sums of 1 MB at the same time, each of which would take 4 ms alone, all end after 16 ms."""
    graph = data_parallel(LinkCalibration(0.0, 4e-9, 2, "the traced link"))
    nodes = [
        replace(node, durations_ns=(16_000_000,) * 3, starts_ns=(0,) * 3) if node.collective else node
        for node in graph.nodes
    ]
    header = replace(graph.header, link=None, parallel_lanes={"gloo": 4})
    monkeypatch.setattr(source, "graph_of_files", lambda paths, **facts: Graph(header, tuple(nodes)))
    times = [TimedCollective("all_reduce", 2, size, 4e-9 * size) for size in (10**5, 10**6)]
    communication.write(tmp_path, times)
    found = graph_of(TraceFiles((tmp_path / "a.json",))).header.link
    assert found is not None
    assert found.beta_s_per_byte == pytest.approx(4e-9)


def test_times_of_nccl_are_a_table_with_the_median_of_each_size(tmp_path: Path) -> None:
    times = [
        {"operation": "all_reduce", "ranks": 2, "bytes": size, "seconds": seconds, "library": "nccl"}
        for size, all_s in ((1000, (1e-5, 3e-5, 2e-5)), (10**6, (1e-3,)))
        for seconds in all_s
    ]
    (tmp_path / "times.json").write_text(json.dumps(times))
    link = source.of_file(tmp_path / "times.json")
    assert link.table == (("all_reduce", 2, 1000, 2e-5), ("all_reduce", 2, 10**6, 1e-3))
    assert time_s(link, "all_reduce", 2, 10**6) == 1e-3

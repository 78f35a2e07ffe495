"""Searches for faster settings of a traced cell in replay; gains that no trace shows are probed on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.whatif import search
from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.replay import Replay, replay
from keras_matrix.analysis.whatif.search import AMP, FUSION, Families, FamilyTrajectories, SearchInputs
from keras_matrix.analysis.whatif.trajectory import Strategy
from keras_matrix.records.codec import to_json
from keras_matrix.records.fc import spec
from keras_matrix.records.schema import Record
from keras_matrix.records.text import plural
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.whatif import WhatIfWork, measure
from keras_matrix.runner.whatif import measurement, probes
from keras_matrix.runner.whatif.measurement import BASE
from keras_matrix.runner.whatif.probes import memory_use


@dataclass(frozen=True, slots=True)
class Gains:
    """The probed ratios of blocks by family, and why families have none."""

    ratios: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)

    def with_ratios(self, family: str, ratios: Mapping[str, float]) -> Gains:
        """Return the gains with those of a family."""
        return Gains({**self.ratios, family: ratios}, self.without)


@dataclass(frozen=True, slots=True)
class StrategySearch:
    """A graph, its replay, what was found from there, and which share of the trace it explains."""

    graph: Graph
    baseline: Replay
    found: FamilyTrajectories
    coverage: float

    def document(self, gains: Gains) -> dict[str, object]:
        """Return the search as plain values."""
        return {
            "source": self.graph.header.source,
            "coverage": self.coverage,
            "step_time_s": self.baseline.step_time_s,
            "probed": to_json(dict(gains.ratios)),
            "not_probed": dict(gains.without),
            "trajectories": to_json(list(self.found.trajectories)),
            "strategies": to_json(list(self.found.strategies)),
        }


def families_of(text: str) -> Families:
    try:
        return search.parse(text)
    except GraphError as error:
        raise UsageError(str(error)) from error


def probed(work: WhatIfWork, graph: Graph, searched_families: Families) -> Gains:
    """Measure the probes that the families need."""
    if not {FUSION, AMP}.intersection(searched_families.names):
        return Gains()
    base = measurement.settings_of(graph.header.settings)
    if base is None:
        return Gains(
            {}, dict.fromkeys({FUSION, AMP}.intersection(searched_families.names), "the trace is not of a cell")
        )
    layer_probes = probes.probes_of(base, graph, searched_families)
    if not layer_probes.probes:
        return Gains({}, layer_probes.without)
    work.display.say(f"probing {plural(len(layer_probes.probes), 'block')} of layers, on one worker")
    cells = measurement.cells_of(
        layer_probes.base, {probe.name: probe.settings for probe in layer_probes.probes}, work.repeats
    )
    times = measure(work.request, work.display, cells, "runner optimize").found
    base_s = times[BASE].step_times_s
    ratios = probes.ratios(
        graph,
        layer_probes.probes,
        base_s,
        {name: measured_setting.step_times_s for name, measured_setting in times.items()},
    )
    return Gains(ratios, layer_probes.without)


def inputs_of(gains: Gains, graph: Graph, record: Record | None, budget: int | None) -> SearchInputs:
    return SearchInputs(
        gains.ratios.get(FUSION, {}),
        gains.ratios.get(AMP, {}),
        None if budget is None else memory_use(record, graph),
        budget,
    )


def searched(graph: Graph, searched_families: Families, inputs: SearchInputs) -> StrategySearch:
    try:
        return StrategySearch(
            graph, replay(graph), search.search(graph, searched_families, inputs), graph.header.coverage
        )
    except GraphError as error:
        raise UsageError(f"TRACE: {error}") from error


def by_time(best: Sequence[Strategy]) -> list[Strategy]:
    return sorted(best, key=lambda strategy: strategy.step_time_s)


def link_words(graph: Graph) -> list[str]:
    """Return the command that makes the links of the traced cell; none for one without."""
    settings = measurement.settings_of(graph.header.settings)
    if settings is None or settings.workload != spec.WORKLOAD or spec.problem_of(settings).network == spec.LOCAL:
        return []
    problem = spec.problem_of(settings)
    return ["ci/netns", str(problem.workers), "--rate", problem.network, "--"]

"""Predicts a traced step under what-ifs: each of them alone, and different ones together, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from keras_matrix.analysis.whatif.corrections import as_mean_process, without_overhead
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import replay
from keras_matrix.analysis.whatif.trajectory import Strategy
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.registry import ChosenWhatIf
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict
from keras_matrix.records.text import plural
from keras_matrix.runner.whatif.measurement import steps_of_call
from keras_matrix.runner.whatif.source import TraceFiles


@dataclass(frozen=True, slots=True)
class StrategyPrediction:
    """A strategy, by the name under which it is shown, its graph, and the caveats that the traced graph lacks."""

    name: str
    strategy: Strategy
    graph: Graph
    caveats: tuple[str, ...] = ()


def without_profiler(graph: Graph, trace: TraceFiles) -> Graph:
    """Return the graph of a step that no profiler slows down, in the mean process of the traced cell.

    Unchanged if the untraced step time is not known.
    """
    record = trace.record
    if record is None or record.times.step_time_s is None:
        return graph
    steps = steps_of_call(record)
    graph = without_overhead(graph, record.times.step_time_s * steps)
    return as_mean_process(graph, [time_s * steps for time_s in trace.step_times_s])


def predictions(
    graph: Graph, choices: Sequence[ChosenWhatIf], predict: Predict | None, resamples: int
) -> list[StrategyPrediction]:
    """Return the prediction of each what-if alone and, if there are several different ones, of all together.

    Several of one name are alternatives. Raises `GraphError`.
    """
    predict_choices = partial(_predicted, graph, predict=predict, resamples=resamples)
    predicted = [predict_choices((choice,)) for choice in choices]
    names = {choice.what_if.name for choice in choices}
    return [*predicted, predict_choices(tuple(choices))] if len(names) == len(choices) > 1 else predicted


def _predicted(
    graph: Graph, choices: tuple[ChosenWhatIf, ...], *, predict: Predict | None, resamples: int
) -> StrategyPrediction:
    changed_graph = registry.apply(graph, choices, predict)
    replayed, realised = replay(changed_graph, resamples=resamples), registry.realised(graph, choices, predict)
    texts = tuple(choice.text for choice in choices)
    reason = realised.reason if len(choices) > 1 else realised.reason.removeprefix(f"{texts[0]}: ")
    strategy = Strategy(
        texts,
        realised.settings,
        replayed.step_time_s,
        replayed.low_s,
        replayed.high_s,
        reason,
        any(choice.what_if.changes_numerics for choice in choices),
    )
    return StrategyPrediction(" ".join(texts), strategy, changed_graph, tuple(_caveats(graph, changed_graph, choices)))


def _caveats(graph: Graph, changed_graph: Graph, choices: Sequence[ChosenWhatIf]) -> Iterator[str]:
    """Yield what the changes add to the caveats of a graph."""
    for choice, reason in registry.without_effect(graph, choices):
        yield f"{choice.text} has no effect: {reason}"
    known_caveats = set(graph.header.caveats)
    yield from (text for text in dict.fromkeys(changed_graph.header.caveats) if text not in known_caveats)
    communicates = any(choice.what_if in registry.COMMUNICATION for choice in registry.effective(graph, choices))
    if communicates and graph.header.missing_ranks and any(node.collective for node in changed_graph.nodes):
        ranks = plural(len(graph.header.missing_ranks), "rank")
        yield (
            f"collectives have their measured times, which include waiting for the {ranks} without a file; that waiting"
            " is predicted as if it were transfer"
        )

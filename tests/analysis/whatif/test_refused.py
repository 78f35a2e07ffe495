"""What has no prediction: graphs, links, measurements and verdicts, each with its message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras_matrix.analysis.whatif import collectives
from keras_matrix.analysis.whatif.corrections import recalibrated
from keras_matrix.analysis.whatif.engine import simulate
from keras_matrix.analysis.whatif.graph import Collective, Graph, GraphError, LinkCalibration
from keras_matrix.analysis.whatif.reconstruct.coverage import of_graph
from keras_matrix.analysis.whatif.reconstruct.nodes import assign_groups
from keras_matrix.analysis.whatif.replay import held_out
from keras_matrix.analysis.whatif.verify import judge, judge_again
from keras_matrix.analysis.whatif.what_ifs.workers import BANDWIDTH, LATENCY, WORKERS
from tests.analysis.whatif.hand_made import LINK, MAIN, Nodes, chain, data_parallel, link
from tests.analysis.whatif.reconstruct.test_groups import rank
from tests.analysis.whatif.test_verify import measured, predicted
from tests.golden import Golden
from tests.messages import check_messages, refusal

TABLE = (("all_reduce", 2, 1000, 6e-7),)
MEASURED = LinkCalibration(1e-3, 1e-9, 2, "measured")


def two_ranks(**sizes: int) -> Nodes:
    """Return two ranks with a collective."""
    nodes = Nodes()
    nodes.collective(0, [100, 100], [nodes.add(1000, number) for number in range(2)], **sizes)
    return nodes


def without_collectives() -> Graph:
    nodes = Nodes()
    for number in range(2):
        nodes.add(1000, number, MAIN)
    return nodes.graph()


def in_different_orders(**header: object) -> Graph:
    """Return two ranks that start two collectives in different orders."""
    nodes = Nodes()
    ready = [nodes.add(10, number) for number in range(2)]
    first, second = (Collective("default", ordinal, "all_reduce", (0, 1), 0) for ordinal in range(2))
    for number, order in enumerate(((first, second), (second, first))):
        for collective in order:
            nodes.add(10, number, LINK, collective=collective, depends=(ready[number],))
    return nodes.graph(**header)


def with_a_rank_without_its_node() -> Graph:
    nodes = Nodes()
    ready = nodes.add(10, 0)
    nodes.add(10, 1)
    nodes.add(30, 0, LINK, collective=Collective("default", 0, "all_reduce", (0, 1), 0), depends=(ready,))
    return nodes.graph()


def group_with_a_missing_step() -> None:
    trace = rank(0, (8, 10, 20))
    trace.windows.append(trace.windows[0])
    trace.lanes = {lane: [*steps, []] for lane, steps in trace.lanes.items()}
    assign_groups([trace], {"0 1": (0, 1)}, [0])


def judged_again(*times_s: float, fitted: Sequence[str] = ()) -> None:
    """Judge a prediction that was fitted once for each of these measured times."""
    verdict = judge({"a": predicted(2.0)}, {"a": measured(1.0)})
    for time_s in times_s:
        verdict = judge_again(verdict, {"a": predicted(1.0)}, {"a": measured(time_s)}, "fit", fitted)


def fit(*points: tuple[int, float], ranks: int = 2) -> LinkCalibration:
    return collectives.fit(list(points), ranks=ranks, source="bench")


CASES: dict[str, Callable[[], object]] = {
    "an unknown collective": lambda: collectives.time_s(link(1, 1), "gossip", 2, 1),
    "a link of collectives of one size": lambda: fit((1000, 1e-3), (1000, 2e-3)),
    "a link of a collective without a duration": lambda: fit((1000, 1e-3), (2000, 0.0)),
    "a link of no rank": lambda: fit((0, 1e-3), (1000, 2e-3), ranks=0),
    "a link of one rank": lambda: fit((0, 1e-3), (1000, 2e-3), ranks=1),
    "a link of a graph without collectives": lambda: collectives.of_trace(without_collectives()),
    "groups without all gradients": lambda: collectives.groups_of([3, 1], 5),
    "groups with an empty one": lambda: collectives.groups_of([5, 0], 5),
    "collectives in different orders": lambda: simulate(in_different_orders()),
    "collectives in different orders, on a lane of its own": lambda: simulate(
        in_different_orders(cores=1, parallel_lanes={"other": 2, LINK: 1})
    ),
    "a rank without its node of a collective": lambda: simulate(with_a_rank_without_its_node()),
    "the step after the only one": lambda: held_out(chain([10])),
    "a recalibration of a table": lambda: recalibrated(
        data_parallel(link=link(0, 0, table=TABLE)), [(("tensor_fusion=each",), 1.0)]
    ),
    "a recalibration without a measurement": lambda: recalibrated(data_parallel(), []),
    "a verdict without a measurement": lambda: judge({"a": predicted(1.0)}, {}),
    "a verdict on what was fitted": lambda: judged_again(1.0, fitted=["a"]),
    "a second recalibration": lambda: judged_again(1.001, 1.002),
    "collectives without bytes, more workers": lambda: WORKERS.apply(two_ranks().graph(link=None), 16),
    "collectives without bytes, more workers, a link": lambda: WORKERS.apply(two_ranks().graph(link=MEASURED), 16),
    "collectives without bytes, another bandwidth": lambda: BANDWIDTH.apply(two_ranks().graph(link=None), 5e8),
    "collectives without bytes, another bandwidth, a link": lambda: BANDWIDTH.apply(
        two_ranks().graph(link=MEASURED), 5e8
    ),
    "collectives without bytes, another latency": lambda: LATENCY.apply(two_ranks().graph(link=None), 1e-3),
    "collectives without bytes, another latency, a link": lambda: LATENCY.apply(two_ranks().graph(link=MEASURED), 1e-3),
    "no collectives, one worker": lambda: WORKERS.apply(without_collectives(), 1),
    "no collectives, more workers": lambda: WORKERS.apply(without_collectives(), 4),
    "a collective of no group": lambda: assign_groups(
        [rank(0, (8, 10, 20)), rank(1, (16, 10, 20))], {"0 1": (0, 1)}, [0, 0]
    ),
    "another number of collectives in a step": group_with_a_missing_step,
    "the coverage of a rank without operations": lambda: of_graph(chain([50]), 1),
}


def test_everything_without_a_prediction_has_its_message(golden: Golden) -> None:
    """Mutation: `workers` leaves times of unknown bytes as they are, and says 1.00x."""
    kinds = (GraphError, ValueError)
    check_messages(golden, "refused.txt", {title: refusal(kinds, call) for title, call in CASES.items()})

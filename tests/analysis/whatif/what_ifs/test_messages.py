"""What `--what-if` is refused for: a table of texts, the graphs that they are applied to, and complete messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.what_if import WhatIfError
from tests.analysis.whatif.hand_made import Nodes, chain, fc_cell
from tests.analysis.whatif.what_ifs.test_batch_and_removal import step
from tests.analysis.whatif.what_ifs.test_layers import stack
from tests.golden import Golden
from tests.messages import check_texts, refusal


def without_bytes() -> Graph:
    nodes = Nodes()
    nodes.collective(0, [100, 100], [nodes.add(1000, rank) for rank in range(2)])
    return nodes.graph()


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "cell": fc_cell,
    "stack": stack,
    "chain": lambda: chain([10]),
    "other": without_bytes,
    "accumulating": lambda: step(gradient_accumulation=2),
}


def test_every_wrong_what_if_has_its_message(golden: Golden) -> None:
    """Mutation: `workers` leaves times as they are, and says 1.00x."""

    def messages_of(line: str) -> list[str]:
        text, _, name = line.strip().partition(" on ")
        if not name:
            return refusal(WhatIfError, lambda: registry.read(text))
        choice = registry.read(text)
        return refusal(WhatIfError, lambda: registry.apply(GRAPHS[name](), [choice]))

    check_texts(golden, "what_ifs.txt", messages_of)

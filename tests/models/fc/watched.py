"""Run with KERAS_BACKEND: what two workers' collectives take, and whether workers left alone do the same products.

Prints, for the mode that the argument names, the watched times and, on JAX, the products of both programs.
"""

import json
import os
import re
import sys
from collections import Counter
from dataclasses import asdict

from models.fc.crew import Order, assemble, reserve
from records.fc import Task

BACKEND = os.environ["KERAS_BACKEND"]


def products(step, crew) -> dict[str, int]:
    """Return how often each shape of a matrix product stands in a compiled step."""
    text = step.lower(crew._weights, crew._batch).compile().as_text()
    return dict(Counter(re.findall(r"= (\w+\[[\d,]*\])\S* (?:dot|custom-call)\(", text)))


def watched(mode: str) -> None:
    order = Order(Task(mode=mode, workers=2, level=2, weight_size=96, batch_size=32), seed=0)
    reserve(BACKEND, 2, "cpu")
    crew = assemble(BACKEND, order, apart=True)
    try:
        crew.run(3)
        found = crew.communication(4, 3)
        told = {"found": asdict(found) if found else None}
        if BACKEND == "jax" and found:
            from models.fc.native.jax import AloneOnJax

            told["real"] = products(crew._step, crew)
            told["alone"] = products(crew._compiled(AloneOnJax(crew._mesh)), crew)
        print(json.dumps(told))
    finally:
        crew.close()


if __name__ == "__main__":
    watched(sys.argv[1])

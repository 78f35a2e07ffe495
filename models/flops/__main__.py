"""`python -P -m keras_matrix.models.flops FOLDER`: read the order there, count on the backend of KERAS_BACKEND, write
the answer.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from keras_matrix.records.codec import decode, dumps, loads
from keras_matrix.records.instruments.work import CountAnswer, CountOrder, Target, work_key


def answer(order: CountOrder) -> CountAnswer:
    """Count each target; one that cannot be built or counted is refused with its reason."""
    from keras_matrix.models.flops import counting

    found = CountAnswer([], [], {})
    tasks: list[tuple[Target, Callable[[], None]]] = []
    tasks += [(t, partial(_add, found.works, counting.work, t)) for t in order.targets]
    tasks += [(t, partial(_add, found.checks, counting.check, t, order.batch_size)) for t in order.checks]
    for target, task in tasks:
        try:
            task()
        except Exception as error:  # noqa: BLE001 - whatever a workload raises: this count alone is missing
            traceback.print_exc()
            found.refused[work_key(target.workload, target.params)] = f"{type(error).__name__}: {error}"[:300]
    return found


def _add(found: list[Any], count: Callable[..., Any], *arguments: Any) -> None:
    found.append(count(*arguments))


def main(folder: Path) -> None:
    """Do the order that lies in `folder`."""
    order = decode(CountOrder, loads((folder / "order.json").read_bytes()), "order")
    (folder / "answer.json").write_text(dumps(answer(order)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""`python -P -m keras_matrix.models.flops FOLDER`: counts the order in FOLDER on KERAS_BACKEND, writes the answer."""

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

    count_answer = CountAnswer([], [], {})

    def add(counts: list[Any], target: Target, count: Callable[[Target], Any]) -> None:
        try:
            counts.append(count(target))
        except Exception as error:  # noqa: BLE001 - any error of a workload: only its own count is missing
            traceback.print_exc()
            count_answer.refused[work_key(target.workload, target.params)] = f"{type(error).__name__}: {error}"[:300]

    for target in order.targets:
        add(count_answer.works, target, counting.work)
    for target in order.checks:
        add(count_answer.checks, target, partial(counting.check, batch_size=order.batch_size))
    return count_answer


def main(folder: Path) -> None:
    """Count the order in `folder`."""
    order = decode(CountOrder, loads((folder / "order.json").read_bytes()), "order")
    (folder / "answer.json").write_text(dumps(answer(order)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

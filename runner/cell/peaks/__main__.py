"""`python -P -m keras_matrix.runner.cell.peaks FOLDER`: read the order there, time, write the answer there."""

from __future__ import annotations

import importlib.metadata
import random
import traceback
from dataclasses import replace

from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.instruments.peaks import PeakAnswer, PeakOrder
from keras_matrix.runner.cell.checks.answering import answer_order
from keras_matrix.runner.cell.peaks import HOST, Bench, NotTimeable
from keras_matrix.runner.cell.peaks.timing import HostBench, array_plan, cache_bytes, gemms, stream


def answer(order: PeakOrder) -> PeakAnswer:
    """Time the ordered operations, in random order. What cannot be timed is refused with its reason."""
    if order.cpus:
        PLATFORM.bind(order.cpus)
    bench, peak_answer = _bench(order)
    if bench is None:
        return peak_answer
    if order.kernels and (plan := array_plan(bench, order)):
        order = replace(order, array_bytes=plan.array_bytes)
        peak_answer.notes.update({kernel: plan.note for kernel in order.kernels if plan.note})
    names = [*order.precisions, *order.kernels]
    random.Random(order.seed).shuffle(names)
    for name in names:
        try:
            if name in order.kernels:
                peak_answer.streams.append(stream(bench, order, name))
            else:
                peak_answer.gemms.extend(gemms(bench, order, name))
        except NotTimeable as refusal:
            peak_answer.refused[name] = str(refusal)
        except Exception as error:  # noqa: BLE001 - any error of a backend: this figure alone is missing
            traceback.print_exc()
            peak_answer.refused[name] = f"{type(error).__name__}: {error}"[:300]
    return peak_answer


def _bench(order: PeakOrder) -> tuple[Bench | None, PeakAnswer]:
    empty_answer = PeakAnswer([], [], {}, {"numpy": importlib.metadata.version("numpy")}, None, cache_bytes())
    settings = order.settings
    if settings.backend == HOST:
        return HostBench(), empty_answer
    from keras_matrix.runner.cell import backends, peaks

    adapter = backends.load(settings.backend)
    adapter.configure(settings, None)
    proof = adapter.proof()
    peak_answer = replace(empty_answer, versions={**empty_answer.versions, **adapter.versions()}, device=proof)
    if proof.platform != settings.device:
        peak_answer.refused["device"] = f"{settings.device} was requested, but tensors are placed on {proof.name}"
        return None, peak_answer
    return peaks.load(settings, adapter), peak_answer


if __name__ == "__main__":
    answer_order(PeakOrder, answer)

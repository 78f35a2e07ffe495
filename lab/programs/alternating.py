"""Observed and plain epochs of a program's call, alternating in its process.

`python -m lab.programs.alternating ORDER.json` runs a program as `python train.py` does, up to the measured call. There
it calls Keras's own method again and again, alternately as `runner script` does and as the program does, and writes
the seconds of an epoch of each into a file. A plain epoch of `fit` is the time between the ends of two epochs; of a
loop of one's own, a pass or a number of steps. The first epoch of each call is left out.
"""

from __future__ import annotations

import functools
import json
import math
import os
import runpy
import statistics
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras

from keras_matrix.models.process import settle
from keras_matrix.records import own_loop
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.called_fit import FitCall, fit_as_called
from keras_matrix.runner.cell.calls import Call
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.script import LOOP_STEPS, OwnLoop
from keras_matrix.runner.cell.work import Counting
from keras_matrix.runner.executors.probe import probe_settings

CALL_S, LEAST_EPOCHS, MOST_EPOCHS = 0.2, 2, 20
LEAST_PAIRS, ENOUGH_PAIRS = 12, 100
MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Order:
    """What one process does: the program, its arguments, the line of the call, and for how long it alternates."""

    backend: str
    program: str
    args: list[str]
    call: str
    seconds: float
    output: str


@dataclass(slots=True)
class Pairs:
    """The mean seconds of an epoch of each pair of calls; the first of a pair is observed in every second one."""

    observed_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)

    @property
    def is_observed_next(self) -> bool:
        """Whether the next call is observed: in the order observed, plain, plain, observed."""
        return (len(self.observed_s) + len(self.plain_s)) % 4 in (0, 3)

    def add(self, times_s: list[float]) -> None:
        """Add the epochs of a call without its first."""
        (self.observed_s if self.is_observed_next else self.plain_s).append(statistics.fmean(times_s[1:]))

    @property
    def is_complete(self) -> bool:
        """Whether the last pair has both its calls."""
        return len(self.observed_s) == len(self.plain_s)


class Study:
    """Alternates at the call that is measured, then ends the process."""

    def __init__(self, order: Order, adapter: BackendAdapter) -> None:
        self.pairs = Pairs()
        self._order, self._adapter = order, adapter
        self._epochs = 0
        self._begun_s = 0.0
        self._entered = threading.local()
        self._loop: OwnLoop | None = None
        self._is_call_over, self._count, self._mark_s = True, 0, 0.0
        self._times_s: list[float] = []

    def wants_more(self) -> bool:
        """Return whether another call is to be made: at least `LEAST_PAIRS`, then until the time is over, or enough."""
        if not self._begun_s:
            self._begun_s = monotonic()
        pairs, count = self.pairs, len(self.pairs.plain_s)
        is_over = monotonic() - self._begun_s > self._order.seconds or count >= ENOUGH_PAIRS
        return not (pairs.is_complete and count >= LEAST_PAIRS and is_over)

    def end(self) -> None:
        """Write the pairs and end the process."""
        document = json.dumps(asdict(self.pairs) | {"epochs": self._epochs - 1})
        Path(self._order.output).write_text(document, encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)

    def is_measured_call(self, kind: str) -> bool:
        """Return whether the call that is being made is that of the order, by its line."""
        place = self._order.call.partition(" ")[2]
        folder = Path.cwd()
        frame = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.startswith(f"{folder}{os.sep}"):
            frame = frame.f_back
        if frame is None:
            return False
        path = Path(frame.f_code.co_filename).relative_to(folder)
        return self._order.call.startswith(f"{kind} ") and f"{path}:{frame.f_lineno}" == place

    def observe_fit(self) -> None:
        """Replace Keras's `fit` by one that alternates at the measured call."""
        owner = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
        original = vars(owner)["fit"]

        @functools.wraps(original)
        def fit(model: Any, *arguments: Any, **named_arguments: Any) -> Any:
            if getattr(self._entered, "inside", False) or not self.is_measured_call("fit"):
                return original(model, *arguments, **named_arguments)
            self._entered.inside = True
            call = FitCall.of(model, *arguments, **named_arguments)
            self.alternate(replace(call, function=functools.partial(original, model)))
            return None

        owner.fit = fit

    def alternate(self, fit: FitCall) -> None:
        """Alternate calls of `fit` and end; the length of a call follows from a short first one."""
        first = self._plain(fit, LEAST_EPOCHS)
        self._epochs = epochs_of(first[-1])
        self._observed(fit, LEAST_EPOCHS)
        settle()
        while self.wants_more():
            one_call = self._observed if self.pairs.is_observed_next else self._plain
            self.pairs.add(one_call(fit, self._epochs))
        self.end()

    def _observed(self, fit: FitCall, epochs: int) -> list[float]:
        counting = Counting("epochs", fit.model, 1, epochs)
        counting.begin()
        return fit_as_called(fit, self._adapter, Stretch(1, epochs), counting).epochs.times_s

    def _plain(self, fit: FitCall, epochs: int) -> list[float]:
        ends, arguments = Ends(), dict(fit.arguments)
        arguments["epochs"] = int(arguments.get("initial_epoch") or 0) + epochs
        own = arguments.get("callbacks") or []
        arguments["callbacks"] = [*(own if isinstance(own, list | tuple) else [own]), ends]
        fit.function(**arguments)
        return [math.nan, *(end - begin for begin, end in zip(ends.times_s, ends.times_s[1:], strict=False))]

    def steps(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of alternately observed and plain passes."""
        return own_loop.Passes(batches, functools.partial(self._passes, batches))

    def _passes(self, batches: Iterable[Any]) -> Iterator[Any]:
        first_s: list[float] = []
        yield from self._plain_passes(batches, LEAST_EPOCHS, first_s)
        self._epochs = epochs_of(first_s[-1])
        settle()
        while self.wants_more():
            times_s: list[float] = []
            if self.pairs.is_observed_next:
                loop = self._own_loop(times_s)
                yield from loop.passes(batches)
            else:
                yield from self._plain_passes(batches, self._epochs, times_s)
            self.pairs.add(times_s)
        self.end()

    def _plain_passes(self, batches: Iterable[Any], epochs: int, times_s: list[float]) -> Iterator[Any]:
        for _ in range(epochs):
            self._adapter.idle()
            begun_s = monotonic()
            yield from batches
            self._adapter.idle()
            times_s.append(monotonic() - begun_s)

    def _own_loop(self, times_s: list[float]) -> OwnLoop:
        settings = SimpleNamespace(epochs=self._epochs, steps_per_epoch="seed", discard=1)
        measurement = SimpleNamespace(
            start_loop=lambda call: Stretch(1, self._epochs),
            idle=self._adapter.idle,
            loop=lambda call, steps, measured_s, notes: times_s.extend(measured_s),
        )
        kind, _, place = self._order.call.partition(" ")
        return OwnLoop(measurement, settings, Call(kind, place, 1, 1))  # type: ignore[arg-type]

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return the context of a step of alternately observed and plain groups of steps."""
        if self._is_call_over:
            self._begin_call()
        if self._loop is not None:
            self._loop.step_begins()
            yield
            self._is_call_over = self._loop.step_ended()
        else:
            yield
            self._count_plain_step()
        if self._is_call_over:
            self.pairs.add(self._times_s)
            if not self.wants_more():
                self.end()

    def restart(self) -> None:
        """Leave out the call that a program did not complete."""
        self._is_call_over = True

    def _begin_call(self) -> None:
        self._epochs = self._epochs or LEAST_EPOCHS
        self._times_s, self._is_call_over, self._count = [], False, 0
        self._loop = self._own_loop(self._times_s) if self.pairs.is_observed_next else None
        self._adapter.idle()
        self._mark_s = monotonic()

    def _count_plain_step(self) -> None:
        self._count += 1
        if self._count % LOOP_STEPS:
            return
        self._adapter.idle()
        self._times_s.append(monotonic() - self._mark_s)
        self._mark_s = monotonic()
        self._is_call_over = len(self._times_s) == self._epochs


class Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """The program's last callback: it notes the end of each epoch, and lets training go on."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the time, and overrule a request to stop."""
        self.times_s.append(monotonic())
        self.model.stop_training = False


def epochs_of(epoch_s: float) -> int:
    """Return the epochs of a call that lasts about `CALL_S`, of which the first is left out."""
    return 1 + min(max(math.ceil(CALL_S / epoch_s), LEAST_EPOCHS - 1), MOST_EPOCHS)


def run(order: Order) -> None:
    """Run the program until its call; one whose steps are too few is run again."""
    settings = replace(probe_settings(order.backend, threads=1), seed=0)
    adapter = backends.load(order.backend)
    adapter.configure(settings, None)
    adapter.seed(0)
    keras.utils.set_random_seed(0)
    study = Study(order, adapter)
    study.observe_fit()
    if not order.call.startswith("fit "):
        own_loop.observer = study
    script = Path.cwd() / order.program
    sys.argv[:] = [script.name, *order.args]
    sys.path.insert(0, str(script.parent))
    for _ in range(MOST_RUNS if order.call.startswith("step ") else 1):
        study.restart()
        runpy.run_path(str(script), run_name="__main__")
    raise SystemExit(f"{order.program}: ended without {order.call}")


if __name__ == "__main__":
    run(Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))

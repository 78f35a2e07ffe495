"""The cell's arithmetic and its clock."""

from __future__ import annotations

import pytest

from tests.imported import ran

pytestmark = pytest.mark.process
FIGURES = """
import numpy as np, types
from dataclasses import replace
from keras_matrix.runner.cell.measured_epochs import epoch_work, summarise
from keras_matrix.runner.cell.batches import make_batches
from keras_matrix.runner.cell.loop import Stretch, call_epochs, step_time_by_doubling
from keras_matrix.runner.cell.phases import EpochClock, fit_epochs
from keras_matrix.runner.cell.replicated.interface import DeviceGroup
from tests.conftest import make_settings
s = make_settings()

t = summarise([9.0, 2.0, 2.0, 2.0], [0.5, 0.5, 0.5], s, 128)
assert (t.first_epoch_time_s, t.epoch_times_s, t.step_time_s) == (9.0, [2.0, 2.0, 2.0], 2.0 / 128)
assert (t.short_epoch_steps, t.suite_total_time_s, t.fixed_time_per_epoch_s) == (32, 1.5, 0.0)
assert t.samples_per_s == 128 * 32 / 2.0
t = summarise([9.0, 1.1, 1.0, 0.9], [0.4, 0.4, 0.4], s, 40)
assert (t.short_epoch_steps, t.suite_total_time_s) == (5, None)
assert abs(t.fixed_time_per_epoch_s - (0.4 - 5 * 0.6 / 35)) < 1e-12
assert summarise([9.0, 1.0, 1.0, 1.0], [], s, 32).suite_total_time_s == 3.0
assert summarise([9.0, 1.0, 1.0, 1.0], [], s, 33).suite_total_time_s is None

assert [epoch_work(s, n).short_steps for n in (1, 7, 8, 32, 63, 64)] == [None, None, 1, 4, 7, 32]
assert epoch_work(replace(s, steps_per_execution=10), 640).short_steps == 80

samples = lambda count, seed: (np.arange(count), np.arange(count))
built = types.SimpleNamespace(samples=samples, pipeline=None)
batches = make_batches(built, replace(s, samples=10, batch_size=4), 100)
assert [b[0].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]

lengths = []
assert abs(step_time_by_doubling(lambda n: lengths.append(n) or 0.01 * n, enough_s=0.15) - 0.01) < 1e-9
assert lengths[0] == 1 and lengths[-1] >= 15
# An epoch costs 50 ms besides its steps of 0.2 ms: 0.15 s are 500 steps. By the epoch alone a step would take 0.3 ms,
# and an epoch of 0.55 s by that only 0.42 s.
assert abs(step_time_by_doubling(lambda n: 0.05 + 0.0002 * n, enough_s=0.15) - 0.0002) < 1e-9
assert step_time_by_doubling(lambda n: 0.4, enough_s=0.15) == 0.4
# A first step that still warms up hides at most half of a step.
assert abs(step_time_by_doubling(lambda n: 0.14 if n == 1 else 0.01 * n, enough_s=0.15) - 0.005) < 1e-9

events = []
adapter = types.SimpleNamespace(barrier=lambda model: events.append("barrier"), group=DeviceGroup())
clock = EpochClock(adapter, Stretch(1, 1), clock=lambda: events.append("clock") or float(len(events)))
clock.on_epoch_begin(0); events.append("steps"); clock.on_epoch_end(0, {"loss": float("nan"), "accuracy": 0.5})
assert events == ["barrier", "clock", "steps", "barrier", "clock"], events
assert clock.log.logs == [{"loss": None, "accuracy": 0.5}] and clock.log.times_s == [3.0]
hooks = [n for n in EpochClock.__dict__ if "batch" in n]
assert not hooks, hooks

events = []
class Model:
    steps_per_execution = 2
    def fit(self, source, steps_per_epoch, epochs, callbacks, **options):
        self.train_function = plain
        callbacks[0].set_model(self)
        for epoch in range(epochs):
            callbacks[0].on_epoch_begin(epoch)
            for _ in range(steps_per_epoch // 2):
                assert self.train_function("iterator") == "outputs"
            callbacks[0].on_epoch_end(epoch, {})
plain = lambda iterator: events.append("step" if model.train_function is plain else "lead-in") or "outputs"
model = Model()
adapter = types.SimpleNamespace(
    barrier=lambda m: events.append("barrier"), wait=lambda o: events.append(o), step_end=lambda o: None,
    group=DeviceGroup(),
)
stretch = Stretch(4, 2, lead_in=2, before=lambda e: events.append(e), started=lambda: events.append("started"))
assert len(fit_epochs(model, None, adapter, stretch).times_s) == 2
epoch = ["lead-in", "outputs", "started", "step", "step", "barrier"]
assert events == ["barrier", 0, *epoch, "barrier", 1, *epoch], events
try:
    fit_epochs(model, None, adapter, Stretch(-2, 1, lead_in=4))
except ValueError as error:
    assert str(error) == "epoch 1 ended within its first 4 steps"
else:
    raise AssertionError("an epoch without a beginning was timed")

# A backend that can wait for one step starts the clock in another thread, while training prepares the next step.
import threading
next_step, now = threading.Event(), iter([10.0, 14.0])
plain = lambda iterator: next_step.set() if model.train_function is plain else "outputs"
model.fit = lambda source, steps_per_epoch, epochs, callbacks, **options: run(callbacks[0])
def run(clock):
    model.train_function = plain
    clock.set_model(model)
    clock._clock = lambda: next(now)
    clock.on_epoch_begin(0)
    model.train_function("iterator")
    model.train_function("iterator")
    assert started.wait(30)
    clock.on_epoch_end(0, {})
started = threading.Event()
adapter.step_end = lambda outputs: lambda: next_step.wait(30)
stretch = Stretch(2, 1, lead_in=2, started=started.set)
assert fit_epochs(model, None, adapter, stretch).times_s == [4.0]
# A hook that synchronises each step reads its figures between two steps: the clock starts there.
next_step.clear(); started.clear(); now = iter([10.0, 15.0])
assert fit_epochs(model, None, adapter, replace(stretch, callbacks=("a hook",))).times_s == [5.0]

from keras_matrix.runner.cell.measured_epochs import Compiling
counts, breaks = iter([4, 7, None, 2, None, None]), iter([1, 1, None, 5, None, None])
adapter = types.SimpleNamespace(compilations=lambda: next(counts), graph_breaks=lambda: next(breaks))
for expected in ((3, 0), (2, 5), (None, None)):
    compiling = Compiling(adapter)
    compiling.begin(); compiling.end()
    assert (compiling.count, compiling.graph_breaks) == expected

from keras_matrix.runner.cell.measured_epochs import Allocated
sizes = iter([10, None, 12])
allocated = Allocated(types.SimpleNamespace(device_memory_bytes=lambda: next(sizes)))
for _ in range(3):
    allocated.note()
assert allocated.sizes_bytes == [10, 12]
for is_reset, peak, span in ((True, 7, "measured_epochs"), (False, 9, "process"), (None, None, None)):
    seen = []
    adapter = types.SimpleNamespace(
        reset_peak_device_memory=lambda: (seen.append("reset"), is_reset)[1],
        device_memory_bytes=lambda: (seen.append("size"), peak)[1],
        peak_device_memory_bytes=lambda: (seen.append("peak"), peak)[1],
    )
    allocated = Allocated(adapter)
    allocated.begin(); allocated.note(); allocated.end()
    assert seen == ["reset", "size", "size", "peak"], seen
    assert (allocated.peak_bytes, allocated.peak_span) == (peak, span)

import gc, weakref
from keras_matrix.runner.cell.measured_epochs import MeasuredEpochs
seen = []
adapter = types.SimpleNamespace(
    compilations=lambda: seen.append("count"), graph_breaks=lambda: None, device_memory_bytes=lambda: None,
    reset_peak_device_memory=lambda: None,
)
turns = types.SimpleNamespace(rest=lambda: seen.append("rest"))
stretch = MeasuredEpochs(turns, Compiling(adapter), Allocated(adapter)).stretch(replace(s, epochs=4, discard=2), 3)
class Ring: pass
gc.collect(); gc.disable()  # so that nothing but what is tested collects
ring = Ring(); ring.itself = ring; gone = weakref.ref(ring); del ring
stretch.before(0); stretch.before(1)
assert (gc.get_freeze_count(), seen) == (0, []) and gone() is not None
stretch.before(2)
frozen = gc.get_freeze_count()
assert gone() is None and frozen > 10_000 and len(gc.get_objects()) < frozen / 100, (frozen, len(gc.get_objects()))
assert seen == ["count", "rest"]
stretch.before(3)
assert gc.get_freeze_count() <= frozen and seen == ["count", "rest", "rest"]
gc.unfreeze(); gc.enable()

calls = []
model = types.SimpleNamespace(predict_on_batch=lambda x: calls.append(x) or np.zeros((5, 2)))
log = call_epochs(model.predict_on_batch, [("a",), ("b",)], Stretch(steps=3, epochs=2, discard=1))
assert calls == ["a", "b", "a", "b", "a", "b"] and len(log.call_times_s) == 3 and len(log.epoch_times_s) == 2
assert log.rows == [15, 15]
"""
QUIET_STEP = """
import keras, numpy as np, time
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.phases import fit_epochs
adapter = backends.load("jax")
class Quiet(keras.Sequential):
    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {}, state
model = Quiet([keras.Input((1024,)), *[keras.layers.Dense(1024) for _ in range(6)]])
model.compile(optimizer="sgd", loss="mse")
x = np.ones((256, 1024), "float32")
source = adapter.endless([adapter.resident((x, x))])
fit_epochs(model, source, adapter, Stretch(2, 1))
began = time.perf_counter()
log = fit_epochs(model, source, adapter, Stretch(20, 2))
total_s = time.perf_counter() - began
assert sum(log.times_s) > 0.8 * total_s, (log.times_s, total_s)
"""


def passes(script: str) -> None:
    done = ran("jax", script)
    assert done.returncode == 0, done.stderr


def test_the_figures_follow_from_the_epochs_and_every_epoch_starts_and_ends_idle() -> None:
    passes(FIGURES)


def test_a_jax_step_without_a_metric_is_still_timed_to_its_end() -> None:
    """Its epoch returns before the device is done; without the barrier it reads many times too fast."""
    passes(QUIET_STEP)

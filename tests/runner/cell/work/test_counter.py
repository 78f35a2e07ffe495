"""Counting the work of a process, with fake counters; in a separate process, since it imports Keras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
COUNTERS = """
from types import SimpleNamespace
import keras, numpy as np
from keras_matrix.runner.cell.batches import Feed
from keras_matrix.runner.cell.loop import Stretch, predicted, rows_of
from keras_matrix.runner.cell.phases import EpochClock
from keras_matrix.runner.cell.replicated.interface import DeviceGroup
from keras_matrix.runner.cell.work import (
    Counting,
    Ledger,
    WeightChecksums,
    _skipped,
    own_methods,
    platforms_of,
)

class Tracker:
    count = 0
    def reset_state(self): self.count = 0

def counting():
    optimizer = SimpleNamespace(_iterations=5)
    made = Counting("epochs", SimpleNamespace(optimizer=optimizer, _loss_tracker=Tracker()), 4, 2)
    made.begin()
    return made, made.model

# Only what is done between the two ends of an epoch is of the epoch.
made, model = counting()
def train(steps):
    model.optimizer._iterations += steps
    model._loss_tracker.count += steps * 8
    made._counter = model.optimizer._iterations  # an int, where Keras has a variable
train(3)
for steps in (4, 2):
    made.epoch_begun(); train(steps); made.epoch_ended(); train(1)
found = made.stretch(Feed(None, lambda: 12, 4))
assert (found.updates, found.samples, found.updates_outside) == ([4, 2], [32, 16], 5), found
assert (found.batches_drawn, found.lookahead, found.skipped_updates) == (12, 4, [0, 0])
assert not made.optimizer_replaced
model.optimizer = None
assert made.optimizer_replaced

# The counters are read outside the time that is measured.
events = []
reader = SimpleNamespace(epoch_begun=lambda: events.append("begun"), epoch_ended=lambda further: events.append("ended"))
adapter = SimpleNamespace(barrier=lambda model: events.append("barrier"), group=DeviceGroup())
before = Stretch(1, 1, before=lambda epoch: events.append("before"))
clock = EpochClock(adapter, before, lambda: events.append("clock") or 0.0, reader)
clock.on_epoch_begin(0); clock.on_epoch_end(0)
assert events == ["barrier", "begun", "before", "clock", "barrier", "clock", "ended"], events

# A model without an optimizer or a loss metric counts nothing.
made = Counting("epochs", SimpleNamespace(optimizer=None), 4, 1)
made.begin(); made.epoch_begun(); made.epoch_ended()
found = made.stretch()
assert (found.updates, found.samples, found.updates_outside, found.batches_drawn) == ([None], [None], None, None)

# An optimizer may make its counter at the first step.
model = SimpleNamespace(optimizer=SimpleNamespace())
made = Counting("epochs", model, 4, 1)
made.begin(); made.epoch_begun(); model.optimizer._iterations = 4; made.epoch_ended()
found = made.stretch()
assert (found.updates, found.updates_outside) == ([4], 0), found

rows = np.zeros((8, 5))
outputs = (rows, [rows, rows[:2]], {"a": rows, "b": np.zeros(1), "c": 1.0}, np.zeros(1), 1.0, [])
assert [rows_of(one) for one in outputs] == [8, 2, 8, 1, 0, 0]

# Each skipped step halves the scale, and 2,000 finite ones double it.
scaled = SimpleNamespace(initial_scale=2.0**15, dynamic_growth_steps=2000)
cases = {
    (10, 10, 1024.0, 1024.0): 0, (10, 8, 1024.0, 256.0): 2, (10, 8, None, 2.0**13): 2, (10, 8, 1024.0, None): 0,
    (10, 8, 1024.0, 1024.0): 0, (10, 0, 1024.0, 1.0): 10, (10, 8, 1024.0, 512.0): 2, (10, 4, 1024.0, 512.0): 0,
    (10, 9, 1024.0, 256.0): 0, (5000, 4996, 1024.0, 256.0): 4, (10, 0, 1.0, 0.0): 10, (10, 20, 1024.0, 1024.0): 0,
    (10, 11, 1024.0, 4096.0): 0,
}
for (steps, updates, before, after), expected in cases.items():
    assert _skipped(scaled, (steps, updates), (before, after)) == expected, (steps, updates, before, after)

plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
assert (own_methods(plain, "fit"), own_methods(plain, "predict")) == ([], [])
plain.train_function = plain.predict_function = print  # as Keras keeps them there
assert (own_methods(plain, "fit"), own_methods(plain, "predict")) == ([], [])
plain.fit = plain._train_step = plain.predict_step = print
assert (own_methods(plain, "fit"), own_methods(plain, "predict")) == (["fit", "_train_step"], ["predict_step"])
names = ("train_step", "make_train_function", "make_predict_function", "predict_on_batch", "predict_function")
body = {name: property(lambda self: print, lambda self, value: None) for name in names}
other = type("Other", (keras.Sequential,), body)([keras.Input((2,)), keras.layers.Dense(1)])
assert own_methods(other, "fit") == ["train_step", "make_train_function"]
assert own_methods(other, "predict") == ["predict_on_batch", "make_predict_function", "predict_function"]

# Weights and the optimizer's variables are compared before and after, the counter of updates left out.
inner = keras.optimizers.SGD(0.1, momentum=0.9)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.BatchNormalization()])
model.optimizer = keras.optimizers.LossScaleOptimizer(inner)
inner.build(model.trainable_variables)
before = WeightChecksums.of(model)
assert (len(before.trainable), len(before.optimizer)) == (4, 5)  # the learning rate, and a momentum a weight
inner._iterations.assign_add(1)
model.layers[-1].moving_mean.assign([5.0])
assert WeightChecksums.of(model) == before
model.trainable_variables[0].assign_add([[1.0], [0.0]])

def done(**changes):
    stretches = [predicted("first_step", 1, [8]), made.stretch()]
    after = WeightChecksums.of(model)
    return Ledger(**({"stretches": stretches, "before": before, "after": after} | changes)).work_done(
        model, ["fit"], ({"gpu", "cpu"}, {"cpu"})
    )

found = done()
assert (found.trainable_variables, found.changed_variables, found.optimizer_state_changed) == (4, 1, False), found
assert (found.updates_per_step, found.samples_per_step, found.skipped_updates) == (1.0, None, 0)
assert (found.weight_platforms, found.output_platforms, found.own_methods) == (["cpu", "gpu"], ["cpu"], ["fit"])
inner.variables[2].assign_add([[1.0], [0.0]])
assert done().optimizer_state_changed is True
made.skipped, made.updates, made.samples = [3], [1], [8]
assert (done().skipped_updates, done().samples_per_step, done().updates_per_step) == (3, 2.0, 1.0)
nothing = done(before=None, stretches=[])
assert (nothing.changed_variables, nothing.optimizer_state_changed, nothing.skipped_updates) == (None, None, None)

def refuse(model, inputs):
    raise RuntimeError("as a user's model may")

adapter = SimpleNamespace(
    platforms=lambda tensors: {str(len(tensors))}, output=lambda model, inputs: [inputs, [inputs]]
)
assert platforms_of(adapter, model, 1.0) == ({"6"}, {"2"})
adapter.output = refuse
assert platforms_of(adapter, model, 1.0) == ({"6"}, set())
"""


def test_work_is_counted_between_the_two_ends_of_an_epoch() -> None:
    root = Path(__file__).parents[4]
    environment = {**os.environ, "KERAS_BACKEND": "numpy"}
    command = [sys.executable, "-c", COUNTERS]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()

"""A program's own call of `fit` is measured with its arguments, on every backend; in a process that imports Keras."""

from __future__ import annotations

import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from tests.imported import ran

pytestmark = pytest.mark.process
CALLS = """
import os, warnings
import keras, numpy as np
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.called_fit import FitCall, fit_as_called, has_cache, prefetches, training_rows
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.work import Counting

warnings.simplefilter("ignore")  # Keras warns of the source that ends early
adapter = backends.load(os.environ["KERAS_BACKEND"])
x, y = np.ones((1000, 8), "float32"), np.ones((1000, 1), "float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
epochs = []
seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))

def measured(**arguments):
    counting = Counting("epochs", model, 1, 4)
    counting.begin()
    call = FitCall.of(model, x, y, batch_size=64, verbose=0, epochs=1, **arguments)
    log = fit_as_called(call, adapter, Stretch(1, 4, 1), counting)
    assert min(log.epochs.times_s) > 0 and len(log.epochs.logs) == 4
    return log, counting.stretch()

# The last batch of arrays has fewer samples; a stop is deferred; validation counts in the same metric of Keras.
stop = keras.callbacks.EarlyStopping(patience=0, monitor="val_loss", mode="max", min_delta=1e9)
log, work = measured(validation_split=0.1, callbacks=[stop, seen])
assert (log.steps, log.stops_deferred) == ([15] * 4, 2), log
assert (work.updates, work.samples, work.updates_outside) == ([15] * 4, [900] * 4, 0), work
assert all(part < whole for part, whole in zip(log.training_times_s, log.epochs.times_s, strict=True))
assert epochs == [0, 1, 2, 3]

# A list object of Keras's, and one callback; epochs count from the initial one; a source may end within an epoch.
several = keras.callbacks.CallbackList([seen], model=model)
log, work = measured(callbacks=several, initial_epoch=2)
assert several.callbacks == [seen]
assert (log.steps, work.samples, epochs[4:]) == ([16] * 4, [1000] * 4, [2, 3, 4, 5])
log, work = measured(callbacks=seen, steps_per_epoch=7)
assert (log.steps, work.samples) == ([7, 7, 2, 7], [448, 448, 104, 448]), log
assert log.training_times_s == [] and "counted" not in str(model.train_function)

# What callbacks evaluate is not training: before the first step, and at an epoch's end.
class Tests(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.evaluate(x[:50], y[:50], verbose=0)
    on_epoch_end = on_epoch_begin

log, work = measured(callbacks=[Tests()])
assert (log.steps, work.samples, work.updates) == ([16] * 4, [1000] * 4, [16] * 4), (log, work)

# A callback's own function of the step stays, whenever it is made; steps are counted all the same.
class Replaces(keras.callbacks.Callback):
    def __init__(self, *names):
        super().__init__()
        for name in names:
            setattr(self, name, self.replaces)

    def replaces(self, epoch, logs=None):
        self.made = self.model.make_train_function(force=True) or self.model.train_function

replaces = Replaces("on_epoch_begin", "on_epoch_end")
log, work = measured(callbacks=replaces)
assert (log.steps, log.functions_replaced, model.train_function) == ([16] * 4, 4, replaces.made), log
assert "step_replaced: a callback compiled the model" in log.notes[0]

# The last call of a source without a length has fewer batches than an execution.
def batches():
    for _ in range(58):
        yield x[:64], y[:64]

if os.environ["KERAS_BACKEND"] != "torch":
    model.compile("sgd", "mse", steps_per_execution=4)
    counting = Counting("epochs", model, 1, 1)
    counting.begin()
    log = fit_as_called(FitCall.of(model, batches(), verbose=0), adapter, Stretch(1, 1, 0), counting)
    assert log.steps == [58], log

# An epoch that is cut ends after its steps as a whole one does: its source is read anew, its validation is whole.
class Items(keras.utils.PyDataset):
    begun = ended = 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return x[:32], y[:32]

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1

model.compile("sgd", "mse")
items = Items(workers=2, max_queue_size=2)
validated = []
whole = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: validated.append(batch))

def cut(source, **arguments):
    counting = Counting("epochs", model, 1, 3)
    counting.begin()
    call = FitCall.of(model, source, verbose=0, callbacks=[whole], **arguments)
    log = fit_as_called(call, adapter, Stretch(1, 3, 1), counting, most_steps=6)
    return log, counting.stretch()

log, work = cut(items, validation_data=(x[:96], y[:96]))
assert (log.steps, log.epochs_cut, log.whole_steps, log.lead_steps) == ([6] * 3, 3, 20, 1), log
assert (work.updates, work.samples, validated) == ([6] * 3, [192] * 3, [0, 1, 2] * 3), (work, validated)
assert items.ended >= items.begun in (3, 4), "each epoch, and where Keras begins one to build the model"
parts = log.lead_times_s, log.training_times_s, log.epochs.times_s
assert all(0 < lead < training < whole for lead, training, whole in zip(*parts, strict=True)), log
assert any(note.startswith("epoch_cut: each epoch ended after 6 of its 20 steps") for note in log.notes), log.notes

def endless():
    while True:
        yield x[:32], y[:32]

log, work = cut(endless())
assert (log.steps, log.whole_steps, log.is_cut) == ([6] * 3, None, True), log
log, work = cut(x[:160], y=y[:160], batch_size=32)
assert (log.steps, log.is_cut, log.lead_times_s) == ([5] * 3, False, []), log

if os.environ["KERAS_BACKEND"] == "tensorflow":
    import tensorflow as tf
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    assert not has_cache({"x": data}) and has_cache({"x": data.cache().map(lambda x, y: (x, y)).prefetch(2)})

# What is known of the source before a call; a source that Keras keeps open prepares batches between two epochs.
assert training_rows({"x": {"a": x}, "validation_split": 0.1}) == 900 and training_rows({"x": batches}) is None
assert prefetches({"x": batches, "steps_per_epoch": 3}) and not prefetches({"x": batches})
assert not prefetches({"x": [x, x], "steps_per_epoch": 3})
print("all as called")
"""


@pytest.mark.parametrize("backend", TRAINING_BACKENDS)
def test_call_of_fit_keeps_its_arguments_and_defers_a_stop(backend: str) -> None:
    done = ran(backend, CALLS)
    assert (done.returncode, done.stdout.strip()) == (0, "all as called"), done.stderr

"""What is read off a program's source: what it trains, on which backends, and the arguments that it needs."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.program_names import Project
from keras_matrix.analysis.programs import KerasProgram, program_of

ALL = ("tensorflow", "jax", "torch")
ON_TENSORFLOW, ON_JAX, ON_TORCH = ("tensorflow",), ("jax",), ("torch",)
MODEL = """
import os, sys
import keras, numpy as np
import tensorflow as tf
import torch, jax
import jax.numpy as jnp
from keras import layers, backend as K
x, y = np.ones((8, 4)), np.ones((8, 1))
model = keras.Sequential([layers.Dense(1)])
"""
FIT = "\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y)\n"


def read(source: str, **others: str) -> KerasProgram | None:
    """Return the program `train.py` of a project with other modules; `__` in their names is a folder."""
    sources = {f"{name.replace('__', '/')}.py": text.encode() for name, text in others.items()}
    return program_of(Project({"train.py": source.encode(), **sources}), "train.py")


def program(source: str, **others: str) -> KerasProgram:
    """Return the same of a program that is one."""
    found = read(source, **others)
    assert found is not None
    return found


STEP = "class Mine(keras.Model):\n    def train_step(self, {0}):\n        {1}\nmodel = Mine()"
LAYER = "class Mine(layers.Layer):\n    def call(self, x):\n        return {0}\nmodel = keras.Sequential([Mine()])"


@pytest.mark.parametrize(
    ("lines", "backends"),
    [
        pytest.param("", ALL, id="plain"),
        pytest.param("x = tf.data.Dataset.from_tensors((x, y)).map(lambda x, y: (tf.cast(x, 'float32'), y))", ALL),
        pytest.param("@tf.function\ndef f(x):\n    return tf.reverse(x, [0])\ntf.data.Dataset.range(3).map(f)", ALL),
        pytest.param("def clean(text):\n    return tf.strings.lower(text)\n"
                     "layers.TextVectorization(standardize=clean)", ALL),
        pytest.param("def f(v):\n    return keras.ops.abs(v)\nds = tf.data.Dataset.range(3).map(f)", ON_TENSORFLOW),
        pytest.param("x = tf.reshape(tf.constant(x), (8, 4))", ALL, id="a tensor of TensorFlow as data"),
        pytest.param("x = torch.from_numpy(x)\nfrom torch.utils.data import DataLoader, TensorDataset", ALL),
        pytest.param("x = jnp.asarray(x)\nkey = jax.random.PRNGKey(0)", ALL, id="an array of JAX as data"),
        pytest.param("tf.random.set_seed(0)\ntf.config.list_physical_devices('GPU')\ntorch.manual_seed(0)", ALL),
        pytest.param("with tf.GradientTape() as tape:\n    pass", ON_TENSORFLOW),
        pytest.param("with tf.distribute.MirroredStrategy().scope():\n    pass", ON_TENSORFLOW),
        pytest.param("@tf.function\ndef f(x):\n    return model(x)\nf(x)", ON_TENSORFLOW),
        pytest.param("@tf.function\ndef f(x):\n    return model(x)", ALL, id="a function that nobody calls"),
        pytest.param("optimizer = torch.optim.SGD(model.parameters())", ON_TORCH),
        pytest.param("loss = model(x)\nloss.backward()", ON_TORCH),
        pytest.param("f = jax.jit(model)", ON_JAX),
        pytest.param("layer = layers.TFSMLayer('saved')", ON_TENSORFLOW),
        pytest.param("layer = layers.TorchModuleWrapper(None)", ON_TORCH),
        pytest.param("layer = layers.FlaxLayer(None)", ("tensorflow", "jax")),
        pytest.param("keras.distribution.set_distribution(keras.distribution.DataParallel())", ON_JAX),
        pytest.param(LAYER.format("keras.ops.relu(x)"), ALL, id="keras.ops in a layer"),
        pytest.param(LAYER.format("tf.nn.relu(x)"), ON_TENSORFLOW),
        pytest.param(LAYER.format("tf.cast(x, tf.float32)"), ON_TENSORFLOW),
        pytest.param(LAYER.format("keras.ops.cast(x, tf.float32)"), ALL, id="a type of TensorFlow in a layer"),
        pytest.param(LAYER.format("jnp.abs(x)"), ON_JAX),
        pytest.param(LAYER.format("torch.abs(x)"), ON_TORCH),
        pytest.param("model = keras.Sequential([layers.Lambda(lambda x: tf.abs(x))])", ON_TENSORFLOW),
        pytest.param("model = keras.Sequential([layers.Dense(1, activation=tf.nn.relu)])", ON_TENSORFLOW),
        pytest.param("def loss(y, p):\n    return tf.reduce_mean(y - p)\nmodel.compile(loss=loss)", ON_TENSORFLOW),
        pytest.param("def loss(y, p):\n    return jnp.mean(y - p)\nmodel.compile('sgd', loss)", ON_JAX),
        pytest.param("class Log(keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None):\n"
                     "        tf.print(epoch)\nlog = Log()", ALL, id="TensorFlow in a callback"),
        pytest.param(STEP.format("data", "return super().train_step(data)"), ("tensorflow", "torch")),
        pytest.param(STEP.format("state, data", "return super().train_step(state, data)"), ON_JAX),
        pytest.param(STEP.format("*args", "return super().train_step(*args)"), ALL),
        pytest.param(STEP.format("data", "with tf.GradientTape() as tape:\n            pass"), ON_TENSORFLOW),
        pytest.param("inputs = keras.Input((1,), dtype='string')", ON_TENSORFLOW),
        pytest.param("inputs = keras.Input((1,), dtype=tf.string)", ON_TENSORFLOW),
        pytest.param("inputs = keras.Input((None,), ragged=True)", ON_TENSORFLOW),
        pytest.param("inputs = keras.Input((9,), sparse=True)", ("tensorflow", "jax")),
        pytest.param("K.clear_session()\nprint(K.floatx())", ALL),
        pytest.param("K.mean(x)", (), id="an operation of Keras 2"),
        pytest.param("tf.keras.backend.mean(x)", ON_TENSORFLOW),
        pytest.param("with tf.keras.backend.name_scope('block'):\n    pass", ALL, id="a name for operations"),
        pytest.param("with K.name_scope('block'):\n    pass", (), id="a name for operations of Keras 2"),
        pytest.param("model = tf.keras.Sequential()", ALL, id="TensorFlow's name for Keras 3"),
        pytest.param("import tf_keras\nmodel = tf_keras.Sequential()", (), id="Keras 2"),
        pytest.param("import optax\noptax.adam(0.1)", ON_JAX),
        pytest.param("os.environ['KERAS_BACKEND'] = 'jax'", ALL, id="a cell has its own"),
        pytest.param("keras.config.set_backend('jax')", ON_JAX),
    ],
)  # fmt: skip
def test_uses_of_libraries_restrict_the_backends(lines: str, backends: tuple[str, ...]) -> None:
    assert program(MODEL + lines + FIT).backends == backends


@pytest.mark.parametrize(
    ("lines", "backends"),
    [
        ("if keras.backend.backend() == 'tensorflow':\n    tape = tf.GradientTape()", ALL),
        ("if 'jax' != keras.config.backend():\n    tape = tf.GradientTape()", ("tensorflow", "jax")),
        ("name = K.backend()\nis_torch = name == 'torch'\nif is_torch:\n    f = jax.jit(model)", ("tensorflow", "jax")),
        ("def is_jax():\n    return K.backend() == 'jax'\nif not is_jax():\n    raise RuntimeError('JAX')", ON_JAX),
        ("if K.backend() in ('tensorflow', 'jax'):\n    pass\nelse:\n    sys.exit('no')", ("tensorflow", "jax")),
        ("if os.environ.get('KERAS_BACKEND', 'jax').lower() == 'torch':\n    sys.exit(1)", ("tensorflow", "jax")),
        ("assert os.environ['KERAS_BACKEND'] == 'torch'", ON_TORCH),
        ("f = jax.jit(model) if K.backend() == 'jax' else model", ALL),
        ("K.backend() == 'jax' and jax.jit(model)", ALL),
        ("f = {'jax': jax.jit, 'torch': torch.compile}[K.backend()](model)", ("jax", "torch")),
        ("f = {'jax': jax.jit, 'torch': torch.compile, 'tensorflow': tf.function}\ng = f[K.backend()](model)", ALL),
        ("match K.backend():\n    case 'jax':\n        jax.jit(x)\n    case 'torch' | 'tensorflow':\n        1", ALL),
        ("match K.backend():\n    case 'jax':\n        pass\n    case _:\n        raise ValueError", ON_JAX),
        ("class Mine(keras.Model):\n    if K.backend() == 'jax':\n        def train_step(self, state, data):\n"
         "            return jax.grad(data)\n    else:\n        def train_step(self, data):\n"
         "            return data\nmodel = Mine()", ALL),
        ("class Mine(keras.Model):\n    def train_step(self, *args):\n        if K.backend() == 'jax':\n"
         "            return self._jax(*args)\n        return super().train_step(*args)\n"
         "    def _jax(self, state, data):\n        return jax.grad(data)\nmodel = Mine()", ALL),
        ("class Mine(keras.Model):\n    if K.backend() == 'torch':\n        def train_step(self, data):\n"
         "            raise ValueError\nmodel = Mine()", ("tensorflow", "jax")),
        ("if K.backend() == 'jax':\n    if not x.any():\n        raise ValueError\n    try:\n        x.any()\n"
         "    except OSError:\n        raise ValueError", ALL),
        ("try:\n    import tf_keras as k\nexcept ImportError:\n    import keras as k\nmodel = k.Sequential()", ALL),
    ],
)  # fmt: skip
def test_branches_that_ask_for_the_backend_are_taken_as_it_takes_them(lines: str, backends: tuple[str, ...]) -> None:
    assert program(MODEL + lines + FIT).backends == backends


def test_a_restriction_names_its_use_and_place_in_the_module_that_has_it() -> None:
    found = program(
        "from parts.build import build\nbuild().fit([1.0])",
        parts__build="import keras\nfrom . import steps\ndef build():\n    return steps.Mine()\n",
        parts__steps="import keras\nimport tensorflow as tf\nclass Mine(keras.Model):\n"
        "    def call(self, x):\n        return tf.abs(x)\n\ndef unused(x):\n    tf.GradientTape()\n",
    )
    assert [(use.use, str(use.place), use.backends) for use in found.restrictions] == [
        ("tf.abs", "parts/steps.py:5", ("jax", "torch"))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "import parts.build\nparts.build.build()",
        "from parts import build\nbuild.build()",
        "from parts.build import *\nbuild()",
        "import parts.build as b\nb.build()",
        "def main():\n    from parts.build import build\n    build()\nif __name__ == '__main__':\n    main()",
    ],
)
def test_own_modules_are_followed_however_they_are_imported(line: str) -> None:
    build = "import keras\nimport tensorflow as tf\ndef build():\n    tf.GradientTape()\n    keras.Model().fit()\n"
    found = program(line, parts__build=build)
    assert (found.backends, str(found.call.place)) == (ON_TENSORFLOW, "parts/build.py:5")


def test_a_branch_imports_the_module_of_its_backend() -> None:
    found = program(
        "import keras\nif keras.backend.backend() == 'jax':\n    from with_jax import train\n"
        "else:\n    from with_tensorflow import train\ntrain()",
        with_jax="import jax, keras\ndef train():\n    jax.jit(print)\n    keras.Model().fit()",
        with_tensorflow="import tensorflow as tf, keras\ndef train():\n    tf.GradientTape()\n    keras.Model().fit()",
    )
    assert found.backends == ("tensorflow", "jax")


@pytest.mark.parametrize(
    ("source", "call"),
    [
        (MODEL + FIT, "fit train.py:12"),
        (MODEL + "model.fit(x)\nmodel.predict(x)", "fit train.py:10"),
        (MODEL + "model.predict(x)", "predict train.py:10"),
        (MODEL + "for b in x:\n    model.train_on_batch(b)", "loop train.py:11"),
        (MODEL + "import keras_matrix\nfor b in keras_matrix.steps(x):\n    pass", "steps train.py:11"),
        (MODEL + "from keras_matrix import step\nwith step():\n    model.train_on_batch(x)", "step train.py:11"),
        (MODEL + "with tf.GradientTape():\n    pass\nmodel.evaluate(x)", "loop train.py:10"),
        ("import keras\nclass T:\n    def fit(self):\n        self.model.fit()\nT().fit()", "fit train.py:4"),
        ("import keras\nclass M(keras.Model):\n    pass\ndef main():\n    M().fit()\nmain()", "fit train.py:5"),
        ("import keras_tuner\nimport keras\nt = keras_tuner.RandomSearch(1)\nt.search()", "fit train.py:4"),
    ],
)
def test_what_a_program_trains_is_named_with_its_line(source: str, call: str) -> None:
    found = program(source).call
    assert f"{found.kind} {found.place}" == call


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("def build():\n    import keras\n    keras.Model().fit()", id="only definitions"),
        pytest.param("import keras\nprint(keras.__version__)", id="no call"),
        pytest.param("from sklearn.svm import SVC\nSVC().fit([1])", id="another library"),
        pytest.param(
            "import keras\nfrom sklearn.svm import SVC\nsvc = SVC()\nsvc.fit([1])", id="another library's fit"
        ),
        pytest.param("import keras\nif __name__ == 'elsewhere':\n    keras.Model().fit()", id="not when it is run"),
        pytest.param("import keras\ndef test_fit():\n    keras.Model().fit()\nprint(1)", id="a test"),
        pytest.param("print(", id="no Python"),
        pytest.param("x = 1" + "+1" * 5000 + "\nprint(x)", id="nested too deeply"),
    ],
)
def test_what_is_no_program_of_keras_is_none(source: str) -> None:
    assert read(source) is None


def test_the_main_part_of_an_imported_program_does_not_run() -> None:
    other = "import keras\ndef build():\n    return keras.Model()\nif __name__ == '__main__':\n    build().predict(1)\n"
    assert str(program("from other import build\nbuild().fit()", other=other).call.place) == "train.py:2"
    alone = program_of(Project({"other.py": other.encode()}), "other.py")
    assert alone is not None
    assert alone.call.kind == "predict"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--width', type=int, default=8)", ()),
        ("p.add_argument('data')", ("DATA",)),
        ("p.add_argument('data', nargs='?')", ()),
        ("p.add_argument('-d', '--data-dir', required=True)", ("--data-dir", "DATA_DIR")),
        ("p.add_argument('--model', required=True, choices=['cnn', 'mlp'])", ("--model", "cnn")),
        ("p.add_subparsers(required=True)", ("COMMAND",)),
        ("data = sys.argv[1]", ("ARGUMENT1",)),
        ("data = sys.argv[1] if len(sys.argv) > 1 else 'x'", ()),
        ("import click\n@click.command()\n@click.option('--data', required=True)\n@click.argument('out')\n"
         "def main(data, out):\n    pass", ("--data", "DATA", "OUT")),
        ("from absl import flags\nflags.DEFINE_string('data', None, 'where')\nflags.mark_flag_as_required('data')",
         ("--data", "DATA")),
    ],
)  # fmt: skip
def test_required_arguments_are_found(lines: str, words: tuple[str, ...]) -> None:
    assert set(program(MODEL + lines + FIT).required) == set(words)


def test_a_program_that_sets_its_backend_or_is_run_as_a_module_is_marked() -> None:
    found = program(
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\nfrom . import a\nkeras.Model().fit()"
    )
    assert (str(found.sets_backend), str(found.as_module)) == ("train.py:2", "train.py:4")


def test_a_name_that_is_given_itself_is_read_in_bounded_time() -> None:
    lines = "".join(f"x{i} = x{(i * 7) % 40}.map(x{(i * 3) % 40}).batch(x{i})\n" for i in range(40)) * 4
    assert program(MODEL + "x0 = tf.data.Dataset.range(3)\n" + lines + FIT).backends == ALL

"""Projects of somebody else's that `runner adopt` reads: each ends with an exit code, and nothing of it is run.

An input is the source of `train.py`, and after a line `# part.py` that of a module which it may import. Each begins
with a line that would leave a file if it were run. A matrix that is written must be a valid one.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.matrix.reader import expand, load
from tests.programs.corpus import corpus
from tests.reliability.fuzz import documents
from tests.reliability.fuzz.target import Check, Target

SEPARATOR = "\n# part.py\n"
LEAVES = "open(__file__ + '.was_run', 'w')\n"
DEEP = 3000  # what Python's own parser and our following of a program must refuse, or survive
HEAD = (
    "import os, sys, keras, torch\nimport tensorflow as tf\nfrom keras import layers, backend as K\n"
    "model = keras.Sequential([layers.Dense(1)])\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y)\n"
)
STATEMENTS = (
    "import part\npart.train(model)",
    "from part import *",
    "from . import part\nfrom .. import train",
    "import train",
    "a = b\nb = a\na.fit(b)",
    "a = a.map(a)\nmodel.fit(a)",
    "class A(A):\n    def call(self, x):\n        return tf.abs(x)\nA()(x)",
    "class B(keras.Model):\n    def train_step(self, *, data=tf):\n        return self.train_step(data)\nB().fit(x)",
    "def f(n):\n    return f(n - 1)\nf(3)",
    "@f\n@tf.function\ndef f():\n    yield from f",
    "if keras.backend.backend() == 'jax':\n    sys.exit(1)\nelse:\n    raise SystemExit",
    "match keras.config.backend():\n    case 'jax' | 'torch':\n        pass\n    case other if other:\n        exit()",
    "{'jax': tf.abs, 'torch': torch.abs}[keras.backend.backend()](x)",
    "os.environ['KERAS_BACKEND'] = 'torch'",
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True, choices=['a', 1])",
    "x = sys.argv[1]\ny = sys.argv[-1]\nz = sys.argv[10 ** 9]",
    "with tf.GradientTape() as tape, open(x) as (a, b[0]):\n    model(x)",
    "for batch in keras_matrix.steps(data):\n    model.train_on_batch(batch)",
    "(lambda *a, **k: (yield))(*x, **y)",
    "[model.fit(x) for model in models if (y := model)]",
    "async def g():\n    async with a as b:\n        await model.fit(x)\ng()",
    "f'{model!r:{x}}' f\"{f'{y}'}\"",
    "global x\nnonlocal y",
    "return model",
    "print 'Python 2'",
    "try:\n    model.predict(x)\nexcept* ValueError as error:\n    raise error from None\nfinally:\n    del model",
    "type = int\nx: type = 3\nx.y[z]: int",
    "loss = model(x)\nloss.backward()",
    "keras.Input((None,), dtype='string', ragged=True, sparse=1)",
    "keras.Input(*shape, **options)",
    "model.fit(**{'x': model.fit})",
)
NESTED = (
    "model.fit(" + "(" * DEEP + "x" + ")" * DEEP + ")",
    "model.fit(" + "(" * 90 + "x" + ")" * 90 + ")",
    "x = " + "-" * DEEP + "1\nmodel.fit(x)",
    "x = " + "not " * 900 + "1",
    "x = " + "1 + " * DEEP + "1",
    "x = " + ".y" * 0 + "y" + ".y" * DEEP + "\nmodel.fit(x)",
    "x = " + "y" + ".y" * 800 + "\nx.fit(x)",
    "x = y" + "()" * DEEP,
    "x = y" + "[0]" * 900,
    "x = " + "a if b else " * DEEP + "c\nx.fit()",
    "x = " + "lambda: " * 900 + "0",
    "\n".join(" " * n + "if x:" for n in range(95)) + "\n" + " " * 95 + "model.fit(x)",
    "\n".join(f"a{n} = a{n + 1} if a{n + 2} else a{n + 3}" for n in range(200)) + "\na0.fit(x)",
    "\n".join(f"def f{n}(): return f{n + 1}() or f{n + 2}()" for n in range(300)) + "\nf0()",
    "\n".join(f"class C{n}(C{n + 1}): pass" for n in range(300)) + "\nC0().fit(x)",
    "\n".join(f"def f{n}(x): return keras.backend.backend() == 'jax' or f{n - 1}()" for n in range(99)) + "\nf98()",
    "x = 9" + "9" * 6000,
    "x = '" + "é" * 300_000 + "'",
    "#" * ((2 << 20) + 1),
    "x = [" + "model.fit(x), " * 20_000 + "]",
)
COOKIES = (b"", b"", b"", b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n", b"# coding: nonsense\n", b"\xff\xfe", b"\0")
USUAL = [program.place[0].read_text(encoding="utf-8") for program in corpus()]


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    """Return a program and a module, most of them statements of the tables above, some a program of the corpus."""
    sources = []
    for _ in range(2):
        parts = draw(st.lists(st.sampled_from(STATEMENTS), max_size=4))
        if draw(st.integers(0, 5)) == 0:
            parts.append(draw(st.sampled_from(NESTED)))
        if draw(st.integers(0, 19)) == 0:
            parts.append(draw(st.text(max_size=20)))
        head = draw(st.sampled_from([HEAD, HEAD, "", *USUAL]))
        source = LEAVES + head + "\n".join(draw(st.permutations(parts))) + "\n"
        if draw(st.booleans()) and draw(st.booleans()):
            source = source.replace("\n", draw(st.sampled_from(["\r\n", "\r", "\n\x0c"])))
        sources.append(source)
    cookie, data = draw(st.sampled_from(COOKIES)), SEPARATOR.join(sources).encode("utf-8", "surrogatepass")
    return draw(documents.damaged_bytes(cookie + data, 2))


@contextmanager
def checking(folder: Path) -> Iterator[Check]:
    project = folder / "project"
    project.mkdir()
    matrix = project / "matrix.yaml"

    def check(data: bytes) -> bool:
        program, _, part = data.partition(SEPARATOR.encode())
        (project / "train.py").write_bytes(program)
        (project / "part.py").write_bytes(part)
        matrix.unlink(missing_ok=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = main(["adopt", str(project)])
        assert code in (0, 1, 2)
        assert matrix.exists() == (code == 0)
        if code == 0:
            assert {cell.settings.script for cell in expand(load(matrix))} <= {"train.py", "part.py"}
        assert sorted(path.name for path in project.iterdir() if path != matrix) == ["part.py", "train.py"]
        return code == 0

    yield check


TARGET = Target(
    inputs(),
    checking,
    share=5,
    modules=("analysis/programs.py", "analysis/program_names.py", "runner/service/adopt.py"),
    least_accepted=0.3,
)

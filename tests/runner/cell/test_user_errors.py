"""The message of an error in the user's code names the file as the host has it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from keras_matrix.models.inputs.stored.sample import InputDataError
from keras_matrix.records.host.import_path import search_path
from keras_matrix.runner.cell.entry import DATA_ERROR, message_of, report_of
from keras_matrix.runner.cell.job import Job
from tests.conftest import make_settings
from tests.golden import Golden
from tests.messages import check_messages


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(sys, "path", search_path([str(tmp_path)], sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two modules of one size and second would be one
    settings = make_settings(workload="own_net:build")
    return Job("", "", 0, 0, settings, 2, str(tmp_path / "work"), [str(tmp_path)], None, None)


@pytest.fixture
def message(job: Job, tmp_path: Path) -> Iterator[Callable[..., str]]:
    def message_of_module(text: str, **changes: object) -> str:
        (tmp_path / "own_net.py").write_text(text)
        sys.modules.pop("own_net", None)
        importlib.invalidate_caches()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the message is what is tested
            importlib.import_module("own_net").build()
        assert isinstance(raised.value, Exception)
        return message_of(raised.value, replace(job, **changes))  # type: ignore[arg-type]

    yield message_of_module
    for name in ("own_net", "colorsys", "wave"):
        sys.modules.pop(name, None)


@pytest.mark.process
def test_a_missing_program_gets_no_advice(message: Callable[..., str], tmp_path: Path) -> None:
    text = "import subprocess\n\ndef build():\n    subprocess.run(['no-such-program'])\n"
    place = f"{tmp_path}/own_net.py:4: subprocess.run(['no-such-program'])"
    expected = f"[Errno 2] No such file or directory: 'no-such-program' ({place})"
    assert message(text) == expected


def test_an_error_outside_the_users_files_keeps_its_message(job: Job) -> None:
    assert message_of(ValueError("x and y are empty"), job) == "x and y are empty"
    assert message_of(KeyError(), job) == "KeyError"


FILE = "data/m.keras"
KERAS = "Exception encountered when calling L.call().\\n\\n\\x1b[1mwants 5 columns\\x1b[0m\\n\\nArguments received:"
# The body of `build`, or the text of the module, and the backend of the cell.
MISTAKES = {
    "an error of two lines": ("raise ValueError('one\\ntwo')", "jax"),
    "an error of a library": ("import json; json.loads('{')", "jax"),
    "a missing file": ("open('/no/such/file')", "jax"),
    "an error of Python's syntax": ("raise SyntaxError", "jax"),
    "an error whose name is no text": ("raise ImportError('no', name=5)", "jax"),
    "a file with the name of a standard module": ("from colorsys import SIZE", "jax"),
    "a folder with the name of a standard module": ("import wave.net", "jax"),
    "a file with the name of a loaded module": ("from numpy import SIZE", "jax"),
    "an error of a layer": (f"raise ValueError('{KERAS}')", "jax"),
    "a missing model": (f"raise ValueError('File not found: filepath={FILE}. Please')", "jax"),
    "missing weights": (f"raise OSError(\"Unable to open file (name = '{FILE}', errno = 2)\")", "torch"),
    "a missing model with an absolute path": ("raise OSError('File not found: filepath=/data/m.keras. Please')", "jax"),
    "a package that is not installed": ("import no_such_package.part", "jax"),
    "a package with another name than its module": ("raise ModuleNotFoundError(name='cv2')", "jax"),
    "TensorFlow on PyTorch": ("tf = None; tf.ones(3)", "torch"),
    "TensorFlow on TensorFlow": ("tf = None; tf.ones(3)", "tensorflow"),
    "JAX on PyTorch": ("jnp = None; jnp.ones(3)", "torch"),
    "NumPy on a traced array": ("raise type('TracerArrayConversionError', (TypeError,), {})('x')", "jax"),
    "train_step of another backend on JAX": (
        "raise TypeError('G.train_step() takes 2 positional arguments but 3')",
        "jax",
    ),
    "train_step of another backend on PyTorch": ("raise TypeError('G.train_step() missing 1 required')", "torch"),
    "an error with a cause": ("raise RuntimeError('not built.') from KeyError('part')", "jax"),
}


def test_every_mistake_has_its_place_and_if_it_is_known_its_cause_and_advice(
    message: Callable[..., str], job: Job, tmp_path: Path, golden: Golden
) -> None:
    for name in ("colorsys/__init__.py", "wave/net.py", "numpy.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("COUNT = 3\n")
    messages = {}
    for title, (code, backend) in MISTAKES.items():
        text = message(f"def build():\n    {code}\n", settings=replace(job.settings, backend=backend))
        messages[title] = text.replace(str(tmp_path), "FOLDER").splitlines()
    named = message("def build():\n    1 / 0\n", host_roots=["/home/user"])
    check_messages(golden, "mistakes.txt", {**messages, "a place, as the host has it": [named]})


@pytest.mark.parametrize(
    "text",
    [
        "Graph execution error:\n\nDetected at node PyFunc\n{{node PyFunc}} Error: InputDataError: a/1.jpg: truncated",
        f"Caught InputDataError in worker process 0.\nOriginal Traceback:\n\n{DATA_ERROR}: a/1.jpg: truncated\n",
    ],
)
def test_error_of_unreadable_data_comes_before_the_text_that_a_library_wraps_it_in(job: Job, text: str) -> None:
    name, message = report_of(RuntimeError(text), job)
    line, _, whole = message.partition("\n")
    assert (name, line) == (DATA_ERROR, "a/1.jpg: truncated")
    assert whole.endswith(text.partition("\n")[2])


GRAPH_ERRORS = {
    "Received a label value of 9 which is outside the valid range of [0, 5)": """\
Graph execution error:

Detected at node loss/SparseSoftmaxCrossEntropyWithLogits defined at (most recent call last):
<stack traces unavailable>
Received a label value of 9 which is outside the valid range of [0, 5)
\t [[{{node loss/SparseSoftmaxCrossEntropyWithLogits}}]] [Op:__inference_step]""",
    "TypeError: `generator` yielded an element that has no shape": """\
Graph execution error:

Detected at node PyFunc defined at (most recent call last):
  File "train.py", line 9, in <module>

2 root error(s) found.
  (0) INVALID_ARGUMENT:  TypeError: `generator` yielded an element that has no shape
Traceback (most recent call last):
\t [[{{node PyFunc}}]]""",
    "Graph execution error:": "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):",
}


@pytest.mark.parametrize("cause", GRAPH_ERRORS)
def test_error_in_a_graph_begins_with_what_failed(job: Job, cause: str) -> None:
    text = message_of(RuntimeError(GRAPH_ERRORS[cause]), job)
    assert text.partition("\n")[0] == cause
    assert "Detected at node" in text


def test_other_errors_are_reported_by_their_own_name(job: Job) -> None:
    assert report_of(KeyError("one"), job) == ("builtins.KeyError", "'one'")
    assert f"{InputDataError.__module__}.{InputDataError.__qualname__}" == DATA_ERROR

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


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(sys, "path", search_path([str(tmp_path)], sys.path))
    settings = make_settings(workload="own_net:build")
    return Job("", "", 0, 0, settings, 2, str(tmp_path / "work"), [str(tmp_path)], None, None)


@pytest.fixture
def message(job: Job, tmp_path: Path) -> Iterator[Callable[..., str]]:
    def message_of_module(text: str, **changes: object) -> str:
        (tmp_path / "own_net.py").write_text(text)
        importlib.invalidate_caches()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the message is what is tested
            importlib.import_module("own_net").build()
        assert isinstance(raised.value, Exception)
        return message_of(raised.value, replace(job, **changes))  # type: ignore[arg-type]

    yield message_of_module
    for name in ("own_net", "colorsys"):
        sys.modules.pop(name, None)


def test_the_first_line_ends_with_the_place(message: Callable[..., str], tmp_path: Path) -> None:
    text = "def build():\n    raise ValueError('one\\ntwo')\n"
    assert message(text) == f"one ({tmp_path}/own_net.py:2: raise ValueError('one\\ntwo'))\ntwo"


def test_the_place_is_named_as_the_host_has_it(message: Callable[..., str]) -> None:
    expected = "division by zero (/home/user/own_net.py:2: 1 / 0)"
    assert message("def build():\n    1 / 0\n", host_roots=["/home/user"]) == expected


def test_the_innermost_place_in_the_users_files_is_named(message: Callable[..., str], tmp_path: Path) -> None:
    text = "import json\n\ndef build():\n    json.loads('{')\n"
    assert message(text).endswith(f" ({tmp_path}/own_net.py:4: json.loads('{{'))")


def test_a_file_with_the_name_of_a_standard_module_is_named(message: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "colorsys").mkdir()
    (tmp_path / "colorsys" / "__init__.py").write_text("SIZE = 3\n")
    expected = (
        f"{tmp_path}/colorsys/__init__.py has the name of a standard module, which Python imports in its place; "
        f"rename it (imported at {tmp_path}/own_net.py:1)"
    )
    assert message("from colorsys import SIZE\n") == expected


def test_a_package_without_init_file_that_has_the_name_of_a_standard_module_is_named(
    message: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "colorsys").mkdir()
    (tmp_path / "colorsys" / "net.py").write_text("SIZE = 3\n")
    expected = f"{tmp_path}/colorsys has the name of a standard module, which Python imports in its place; rename it"
    assert message("import colorsys.net\n") == f"{expected} (imported at {tmp_path}/own_net.py:1)"


def test_a_file_with_the_name_of_a_loaded_module_is_named(message: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("SIZE = 3\n")
    assert message("from numpy import SIZE\n").startswith(f"{tmp_path}/numpy.py has the name of an installed module")


def test_a_missing_file_with_an_absolute_path_gets_no_advice(message: Callable[..., str], tmp_path: Path) -> None:
    text = "def build():\n    open('/no/such/file')\n"
    expected = f"[Errno 2] No such file or directory: '/no/such/file' ({tmp_path}/own_net.py:2: open('/no/such/file'))"
    assert message(text) == expected


@pytest.mark.process
def test_a_missing_program_gets_no_advice(message: Callable[..., str], tmp_path: Path) -> None:
    text = "import subprocess\n\ndef build():\n    subprocess.run(['no-such-program'])\n"
    place = f"{tmp_path}/own_net.py:4: subprocess.run(['no-such-program'])"
    expected = f"[Errno 2] No such file or directory: 'no-such-program' ({place})"
    assert message(text) == expected


def test_an_error_outside_the_users_files_keeps_its_message(job: Job) -> None:
    assert message_of(ValueError("x and y are empty"), job) == "x and y are empty"
    assert message_of(KeyError(), job) == "KeyError"


def test_an_unusual_exception_has_a_message_too(message: Callable[..., str], tmp_path: Path) -> None:
    raising = "def build():\n    raise {}\n"
    assert message(raising.format("SyntaxError")) == f"SyntaxError ({tmp_path}/own_net.py:2: raise SyntaxError)"
    sys.modules.pop("own_net")
    assert message(raising.format("ImportError('no', name=5)  #")).startswith(f"no ({tmp_path}/own_net.py:2: raise ")


FILE = "data/m.keras"
KERAS = "Exception encountered when calling L.call().\\n\\n\\x1b[1mwants 5 columns\\x1b[0m\\n\\nArguments received:"


@pytest.mark.parametrize(
    ("code", "backend", "expected"),
    [
        (f"raise ValueError('{KERAS}')", "jax", "wants 5 columns (in L.call())"),
        (f"raise ValueError('File not found: filepath={FILE}. Please')", "jax", "a cell runs in a folder of its own"),
        (f"raise OSError(\"Unable to open file (name = '{FILE}', errno = 2)\")", "torch", f"parent / '{FILE}'"),
        (
            "raise OSError('File not found: filepath=/data/m.keras. Please')",
            "jax",
            "not found: filepath=/data/m.keras. P",
        ),
        ("import no_such_package.part", "jax", "install no_such_package for the Python of the cells"),
        ("raise ModuleNotFoundError(name='cv2')", "jax", "install opencv-python-headless for"),
        ("tf = None; tf.ones(3)", "torch", "the line uses tensorflow on torch: use keras.ops"),
        ("tf = None; tf.ones(3)", "tensorflow", "object has no attribute 'ones' ("),
        ("jnp = None; jnp.ones(3)", "torch", "the line uses jax on torch: use keras.ops"),
        ("raise type('TracerArrayConversionError', (TypeError,), {})('x')", "jax", "x; on JAX a step is traced"),
        ("raise TypeError('G.train_step() takes 2 positional arguments but 3')", "jax", "train_step(state, data) and"),
        (
            "raise TypeError('G.train_step() missing 1 required')",
            "torch",
            "on torch Keras calls train_step(data): write",
        ),
        ("raise RuntimeError('not built.') from KeyError('part')", "jax", "not built: caused by KeyError: 'part'"),
    ],
)
def test_known_mistake_has_its_cause_and_advice(
    message: Callable[..., str], job: Job, code: str, backend: str, expected: str
) -> None:
    text = message(f"def build():\n    {code}\n", settings=replace(job.settings, backend=backend))
    assert expected in text.partition("\n")[0]
    assert "own_net.py:2: " in text


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

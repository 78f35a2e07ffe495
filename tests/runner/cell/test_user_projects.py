"""A user's project is measured whatever its packages are called, and its mistakes are named by file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keras_matrix.records.backends import TRAINING_BACKENDS
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.runner.cli.main import main
from tests.conftest import NIGHTLY
from tests.projects.layouts import lay_out
from tests.sessions import counted_records

pytestmark = pytest.mark.process
MATRIX = "version: 1\ndefaults: {repeats: 1, epochs: 2, steps_per_epoch: 2, batch_size: 4}\nbackends: [torch]\ncells:\n"


def run(folder: Path, *arguments: str) -> int:
    return main(["--matrix", str(folder / "matrix.yaml"), "--results", str(folder / "results"), *arguments])


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize(
    ("layout", "start", "backends"),
    [("flat", "fresh", TRAINING_BACKENDS if NIGHTLY else ("torch",)), ("src", "fork", TRAINING_BACKENDS)],
    ids=["flat", "src"],
)
def test_a_project_with_our_package_names_is_measured_on_every_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, start: str, backends: tuple[str, ...]
) -> None:
    lay_out(tmp_path, layout)
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, "--start", start, *(f"--backend={backend}" for backend in backends)) == 0
    records = counted_records(tmp_path)
    assert {record.settings.backend for record in records} == set(backends)
    assert [record.reason for record in records if record.status not in MEASURED] == []


OWN = """\
import numpy as np
import keras


def build():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, np.ones((8, 2)), np.ones((8, 1))
"""
FILES = {
    "own.py": OWN,
    "random.py": OWN,
    "types.py": "SIZE = 3\n",
    "from_shadowed.py": "from own import build\nfrom random import batches\n",
    "uses_shadowed.py": "import types\n\nSIZE = types.SIZE\n\ndef build():\n    pass\n",
    "imports_us.py": "from keras_matrix.records.schema import Record\nfrom own import build\n",
    "broken.py": "import keras\ndef build(:\n",
    "imports_broken.py": "import broken\n\nbuild = broken.build\n",
    "reads.py": "def build():\n    return open('data/x.csv')\n",
    "raises.py": "def build():\n    raise LookupError('no such layer')\n",
}
SHADOWED = "has the name of a standard module, which Python imports in its place; rename it"
REASONS = {
    "own": None,
    "imports_us": None,
    "random": f"ValueError: {{0}}/random.py {SHADOWED}",
    "from_shadowed": f"ImportError: {{0}}/random.py {SHADOWED} (imported at {{0}}/from_shadowed.py:2)",
    "uses_shadowed": f"AttributeError: {{0}}/types.py {SHADOWED} (imported at {{0}}/uses_shadowed.py:3)",
    "broken": "SyntaxError: invalid syntax ({0}/broken.py:2)",
    "imports_broken": "SyntaxError: invalid syntax ({0}/broken.py:2)",
    "reads": "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'; a cell runs in a folder "
    "of its own: use Path(__file__).parent / 'data/x.csv' ({0}/reads.py:2: return open('data/x.csv'))",
    "raises": "LookupError: no such layer ({0}/raises.py:2: raise LookupError('no such layer'))",
}


def test_a_mistake_in_a_users_file_is_one_reason_with_its_file_and_line(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "matrix.yaml").write_text(MATRIX + "".join(f"  - workload: {name}:build\n" for name in REASONS))
    assert run(tmp_path) == 1
    records = {record.settings.workload.partition(":")[0]: record for record in counted_records(tmp_path)}
    assert {name: reason(record) for name, record in records.items()} == {
        name: expected and expected.format(tmp_path) for name, expected in REASONS.items()
    }


READS_DOWNLOADS = """\
from pathlib import Path

import keras
import numpy as np


def build():
    x = np.load(keras.utils.get_file("mine.npy", origin="http://127.0.0.1:9/mine.npy"))
    weights = Path.home() / ".cache" / "huggingface" / "hub" / "models--mine" / "weights.npy"
    assert np.load(Path.home() / "tensorflow_datasets" / "mine.npy").shape == np.load(weights).shape == x.shape
    weights.write_bytes(b"others")
    (Path.home() / "tensorflow_datasets" / "new.npy").write_bytes(b"new")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, x, np.ones((8, 1))
"""


@pytest.mark.nightly(beyond=1)
@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_build_finds_earlier_downloads_and_leaves_them_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """Mutation: the downloads are handed to programs alone, or the home of a fork server is searched."""
    home = tmp_path / "user"
    places = (".keras/datasets", "tensorflow_datasets", ".cache/huggingface/hub/models--mine")
    files = [home / place / name for place, name in zip(places, ("mine.npy", "mine.npy", "weights.npy"), strict=True)]
    for path in files:
        path.parent.mkdir(parents=True)
        np.save(path, np.ones((8, 2)))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("KERAS_HOME", raising=False)
    before = [path.read_bytes() for path in files]
    (tmp_path / "own.py").write_text(READS_DOWNLOADS)
    (tmp_path / "matrix.yaml").write_text(f"{MATRIX}  - workload: own:build\n")
    assert run(tmp_path, "--start", start) == 0
    assert [reason(record) for record in counted_records(tmp_path)] == [None]
    assert [path.read_bytes() for path in files] == before
    assert not (home / "tensorflow_datasets" / "new.npy").exists()


def reason(record: Record) -> str | None:
    return None if record.status in MEASURED else record.reason if record.status is Status.ERROR else record.status

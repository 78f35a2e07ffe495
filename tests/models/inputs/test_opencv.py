"""OpenCV is imported without a trace in the environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = """
import os
from keras_matrix.models.inputs.opencv import opencv
assert opencv().getNumThreads() == 1
print(os.environ.get("LD_LIBRARY_PATH"))
"""


@pytest.mark.process
@pytest.mark.parametrize("before", [None, "/a/folder"])
def test_import_leaves_the_search_path_of_libraries_as_it_was(before: str | None) -> None:
    environment = {"PATH": "/usr/bin:/bin"} | ({} if before is None else {"LD_LIBRARY_PATH": before})
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{before}\n", "")

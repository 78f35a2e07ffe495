"""`lab/run` runs a module of `lab` by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "lab" / "run"


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["../compatibility"]])
def test_unknown_name_is_refused_with_the_list_of_studies(arguments: list[str]) -> None:
    done = subprocess.run([str(STUDY), *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "NAME: must be one of bisect bisect_real cluster containers explain fc fc_layers" in done.stderr

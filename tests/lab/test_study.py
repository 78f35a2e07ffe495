"""`lab/run` runs a module of `lab` by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "lab" / "run"


@pytest.mark.process
@pytest.mark.parametrize("arguments", [[], ["nothing"], ["../compatibility"]])
def test_unknown_name_is_refused_with_the_list_of_studies(arguments: list[str]) -> None:
    done = subprocess.run([str(STUDY), *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    names = done.stderr.partition("must be one of ")[2].partition(",")[0].split()
    assert {"bisect", "fc", "power", "statistics"} <= {*names}


def test_every_study_has_a_row_in_the_lab() -> None:
    names = {path.stem for path in STUDY.parent.glob("*.py")} | {
        path.parent.name for path in STUDY.parent.glob("*/command.py")
    }
    rows = (STUDY.parents[1] / "docs" / "lab" / "index.md").read_text(encoding="utf-8")
    assert len(names) > 20
    assert {name for name in names if f"lab/run {name}" not in rows} == {"fc_layers"}, "a part of `lab/run fc`"


@pytest.mark.process
@pytest.mark.parametrize("name", ["power", "statistics"])
def test_a_study_of_several_modules_is_found_by_its_folder(name: str) -> None:
    done = subprocess.run([str(STUDY), name, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout

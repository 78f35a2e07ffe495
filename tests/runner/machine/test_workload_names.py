"""A user's module is read for the function that a matrix names, and never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.machine.workload_names import missing_function
from keras_matrix.runner.measure.seams import Seams
from tests.fakes.executor import FakeExecutor

RUN = "raise SystemExit('the module was run')\n"


def module(folder: Path, text: str, name: str = "my_workload.py") -> list[Path]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RUN + text)
    return [folder]


def test_misspelled_function_is_named_with_a_near_name(tmp_path: Path) -> None:
    roots = module(tmp_path, "def build():\n    pass\n")
    assert missing_function("my_workload:build", roots) is None
    assert missing_function("my_workload:biuld", roots) == (
        f"must name a function of {tmp_path / 'my_workload.py'}, got 'my_workload:biuld'; did you mean build?"
    )


@pytest.mark.parametrize(
    "text",
    [
        "biuld = lambda: None",
        "from other import biuld",
        "from other import build as biuld",
        "import biuld.models",
        "class biuld: pass",
        "async def biuld(): pass",
        "biuld: object = 1",
        "if True:\n    def biuld(): pass",
        "try:\n    from x import biuld\nexcept ImportError:\n    biuld = None",
        "for biuld in (): pass",
        "(a, [biuld]) = 1, [2]",
        "from other import *",
        "def __getattr__(name): return print",
        "globals()['biuld'] = print",
        "import sys\nsetattr(sys.modules[__name__], 'biuld', print)",
        "exec('biuld = print')",
        "def f():\n    global biuld\n    biuld = 1\nf()",
        "def broken(:",
        "x = '\\ud800'",
        "x = " + "+".join("1" * 5000) + "\nbiuld = 1",
    ],
)
def test_module_that_may_have_the_function_is_left_to_the_cell(tmp_path: Path, text: str) -> None:
    roots = module(tmp_path, text)
    expected = None if "ud800" not in text else "must name a function of "
    assert (missing_function("my_workload:biuld", roots) or "").startswith(expected or "")
    assert (missing_function("my_workload:biuld", roots) is None) == (expected is None)


def test_local_name_of_a_function_is_no_name_of_the_module(tmp_path: Path) -> None:
    roots = module(tmp_path, "def build():\n    biuld = 1\n    import biuld2\n")
    assert missing_function("my_workload:biuld", roots) is not None


def test_module_in_a_package_is_read_and_its_packages_are_not_run(tmp_path: Path) -> None:
    module(tmp_path, "", "package/__init__.py")
    roots = module(tmp_path, "def build(): pass\n", "package/inner.py")
    assert missing_function("package.inner:build", roots) is None
    assert "package/inner.py" in (missing_function("package.inner:builds", roots) or "")


def test_module_that_is_not_in_the_users_folders_is_left_to_the_cell(tmp_path: Path) -> None:
    module(tmp_path / "b", "def other(): pass\n", "package/inner.py")
    (tmp_path / "a").mkdir()
    assert missing_function("package.inner:build", [tmp_path / "b"]) is None  # a package without __init__
    assert missing_function("nowhere:build", [tmp_path]) is None
    assert missing_function("random:biuld", module(tmp_path, "", "random.py")) is None  # the standard library is first


@pytest.mark.parametrize("command", [["plan"], ["run"]])
def test_plan_and_run_refuse_a_function_that_the_module_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module(tmp_path, "def build(): pass\n")
    Path("matrix.yaml").write_text("version: 1\nbackends: [jax, torch]\ncells:\n  - workload: my_workload:biuld\n")
    executor = FakeExecutor()
    assert main(command, Seams(executor=executor)) == 2
    where = tmp_path / "my_workload.py"
    assert capsys.readouterr().err == (
        f"runner: matrix.yaml:4: workload: must name a function of {where}, "
        "got 'my_workload:biuld'; did you mean build?\n"
    )
    assert executor.jobs == []
    assert main(["plan", "--workload", "my_workload:biuld"], Seams()) == 2
    assert capsys.readouterr().err.startswith("runner: the workload must name a function of ")

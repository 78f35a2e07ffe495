"""The command `uploader`, end to end on the local warehouse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.uploader.stored import results_with, store_run
from uploader.cli.main import main
from uploader.local import LocalWarehouse
from uploader.verify import verify

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def results(tmp_path: Path) -> str:
    return str(results_with(tmp_path / "results").root)


def test_push_push_again_verify_status_and_query(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", "--results", results]) == 0
    assert "106 new rows, 0 were there" in capsys.readouterr().out
    assert main(["push", "--results", results]) == 0
    assert "0 new rows, 0 were there" in capsys.readouterr().out
    assert main(["verify", "--results", results, "--values"]) == 0
    assert "106 rows by the records, 106 in the warehouse" in capsys.readouterr().out
    assert main(["status", "--results", results]) == 0
    assert "0 batches pending, 4 arrived, 0 rows set aside" in capsys.readouterr().out
    sql = "SELECT backend, COUNT(*) AS attempts FROM cells WHERE repeat < @most GROUP BY backend"
    assert main(["query", sql, "--set", "most=2", "--csv", "--results", results]) == 0
    assert capsys.readouterr().out.split() == ["backend,attempts", "jax,4"]


def test_a_query_prints_a_table_or_json(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["push", "--results", results, "--quiet"])
    assert main(["query", "SELECT 1 AS one, NULL AS two", "--results", results]) == 0
    assert "1 rows" in capsys.readouterr().out
    assert main(["query", "SELECT day FROM runs ORDER BY day", "--json", "--results", results]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {"day": "2026-01-01"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["push", "--to", "bigquery://P.d"], "--to: must be local"),
        (["push", "--to", "postgres://x"], "--to: must be local"),
        (["push", "--results", "absent"], "--results: absent is no folder"),
        (["query", "DROP TABLE cells"], "the query must be one SELECT"),
        (["query"], "SELECT: give a query"),
        (["query", "SELECT 1 AS x", "--set", "y"], "--set: must be NAME=VALUE, got 'y'"),
    ],
)
def test_what_cannot_be_used_ends_with_2_and_says_why(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_rows_that_are_set_aside_end_with_1_and_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_run(tmp_path, 0, count=1, reason="x" * (1 << 20))
    assert main(["push", "--results", str(tmp_path)]) == 1
    assert main(["status", "--results", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "1 rows are set aside" in told
    assert "bytes, more than 1,048,576" in told


def test_help_imports_neither_engine_nor_client() -> None:
    script = (
        "import sys\nfrom uploader.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'duckdb', 'sqlglot', 'google.cloud', 'rich', 'numpy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_secret_of_the_environment_reaches_any_output_or_row(tmp_path: Path, results: str) -> None:
    canary = "canary-4f1c"
    environment = {**os.environ, "SECRET_TOKEN": canary, "BIGQUERY_EMULATOR_HOST": "http://127.0.0.1:9"}
    for command in (["push"], ["status"], ["verify"]):
        done = subprocess.run(
            [sys.executable, "-m", "uploader", *command, "--results", results],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert canary not in done.stdout + done.stderr
    assert [path for path in Path(results).rglob("*") if path.is_file() and canary.encode() in path.read_bytes()] == []


@pytest.mark.process
def test_two_hundred_pushes_killed_at_random_steps_leave_each_row_once(tmp_path: Path) -> None:
    """SIGKILL at the k-th call that changes the disk, k going over all of a push, again and again."""
    results = results_with(tmp_path / "results", runs=1, count=1)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "left = int(sys.argv.pop(1))\n"
        "def dying(call):\n"
        "    def wrapped(*args, **kwargs):\n"
        "        global left\n"
        "        left -= 1\n"
        "        if left < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return call(*args, **kwargs)\n"
        "    return wrapped\n"
        "for name in ('fsync', 'link', 'replace'): setattr(os, name, dying(getattr(os, name)))\n"
        "Path.unlink, Path.replace = dying(Path.unlink), dying(Path.replace)\n"
        "from uploader.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    killed = 0
    for number in range(int(os.environ.get("PUSHES", "200"))):
        if number % 4 == 0:
            store_run(results.root, number + 1, count=1)
        command = [sys.executable, "-c", script, str(number % 40), "push", "--results", str(results.root), "--quiet"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        killed += done.returncode == -signal.SIGKILL
    assert main(["push", "--results", str(results.root), "--quiet"]) == 0
    assert killed > 20
    assert verify(results, LocalWarehouse(results.root / "warehouse"), values=True).problems == ()

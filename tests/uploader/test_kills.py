"""`ci/kills`: a few kills of each kind; finds warehouses that lose, duplicate or alter rows, or never complete."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.uploader.faulty import Answer
from tests.uploader.kills.__main__ import SHARES, Plan, main, table
from tests.uploader.kills.killing_proxy import KillingProxy
from tests.uploader.kills.pushes import NEVER, Kill, Outcome, Unfinished, push_local
from tests.uploader.kills.rounds import Rounds, Tally, kill_one_by_one, push_at_once
from tests.uploader.reader.actual import Found
from tests.uploader.reader.expected import expected_rows
from tests.uploader.reader.tables import documented
from tests.uploader.stored import results_with

BOUNDARIES = 6
KILLED = Outcome(-signal.SIGKILL, 0, 0.1, "")
Fault = Callable[[Found, Kill], None]


@dataclass
class Pretended:
    """A warehouse in memory whose pushes have six boundaries; the rows are stored after boundary 3."""

    fault: Fault = lambda rows, kill: None
    codes: Sequence[int] = (0,)
    name: str = "pretended"
    seen: list[int] = field(default_factory=list)
    rows: Found = field(default_factory=lambda: {table.name: [] for table in documented()})

    def make(self) -> None:
        """Do nothing."""

    def push(self, results: Path, kill: Kill) -> Outcome:
        """Store the missing rows, unless the kill comes first."""
        killed = kill.after_s is not None or (kill.boundary is not None and kill.boundary < BOUNDARIES)
        if kill.boundary is not None and killed:
            self.seen.append(kill.boundary)
        if not killed or (kill.boundary or 0) >= 3:
            for name, rows in expected_rows([results]).items():
                self.rows[name] += [row for row in rows.values() if row not in self.rows[name]]
            self.fault(self.rows, kill)
        code = self.codes[min(len(self.seen), len(self.codes) - 1)]
        return KILLED if killed else Outcome(code, BOUNDARIES, 0.1, "push again")

    def found(self) -> Found:
        """Return the rows."""
        return self.rows


def rounds_of(target: Pretended, folder: Path) -> Rounds:
    made = Rounds(target, folder, random.Random(1))
    made.begin()
    return made


def test_kills_happen_at_every_boundary_of_a_push_and_then_at_random_moments(tmp_path: Path) -> None:
    target = Pretended()
    rounds = rounds_of(target, tmp_path)
    kill_one_by_one(rounds, 20, every_boundary=True)
    assert sorted(target.seen) == list(range(BOUNDARIES))
    assert (rounds.tally.boundaries, rounds.tally.known) == (set(range(BOUNDARIES)), BOUNDARIES)
    assert (rounds.tally.every_boundary, rounds.tally.good) == (True, True)
    assert rounds.tally.kills >= 20


def test_number_of_kills_limits_the_boundaries_tested(tmp_path: Path) -> None:
    rounds = rounds_of(Pretended(), tmp_path)
    kill_one_by_one(rounds, 2, every_boundary=False)
    assert 2 <= rounds.tally.kills <= 3
    assert rounds.tally.rows > 0


def test_concurrent_pushes_are_killed_and_repeated_until_all_complete(tmp_path: Path) -> None:
    rounds = rounds_of(Pretended(), tmp_path)
    push_at_once(rounds, 12)
    assert rounds.tally.at_once >= 12
    assert rounds.tally.kills > 0
    assert rounds.tally.good


def double(rows: Found, kill: Kill) -> None:
    if kill.boundary == 4:
        rows["measurements"].append(rows["measurements"][0])


def alter(rows: Found, kill: Kill) -> None:
    if kill.boundary == 4:
        rows["runs"][0] = {**rows["runs"][0], "planned": 99}


@pytest.mark.parametrize(("fault", "kind"), [(double, "doubled"), (alter, "altered")])
def test_duplicated_and_altered_rows_after_a_kill_are_counted(tmp_path: Path, fault: Fault, kind: str) -> None:
    rounds = rounds_of(Pretended(fault), tmp_path)
    kill_one_by_one(rounds, 6, every_boundary=True)
    assert rounds.tally.number(kind) == 1
    assert not rounds.tally.good


def test_permanently_lost_rows_are_counted(tmp_path: Path) -> None:
    def forget(rows: Found, kill: Kill) -> None:
        rows["findings"].clear()

    rounds = rounds_of(Pretended(forget), tmp_path)
    kill_one_by_one(rounds, 1, every_boundary=False)
    assert rounds.tally.number("lost") == 3
    assert not rounds.tally.good


@pytest.mark.parametrize(("code", "message"), [(3, "not done after 25 pushes"), (1, "exit code 1")])
def test_push_that_always_fails_stops_the_target(tmp_path: Path, code: int, message: str) -> None:
    rounds = rounds_of(Pretended(codes=(0, code)), tmp_path)
    with pytest.raises(Unfinished, match=message):
        kill_one_by_one(rounds, 6, every_boundary=True)


def test_shares_of_all_targets_amount_to_at_least_the_requested_kills() -> None:
    plan = Plan(("local", "emulator", "fake"), 500, 200, 0, every_boundary=True)
    shares = [plan.share(name) for name in SHARES]
    assert sum(kills for kills, _ in shares) >= 500
    assert sum(pushes for _, pushes in shares) >= 200
    assert Plan(("local",), 7, 3, 0, every_boundary=False).share("local") == (7, 3)


def test_table_shows_counts_differences_and_why_a_target_stopped() -> None:
    lines = [f"doubled: cells {number}" for number in range(22)]
    tally = Tally(
        kills=1234, known=90, boundaries={1, 2}, pushes=5, differences=dict.fromkeys(lines), stopped="a reason"
    )
    found = table({"local": tally})
    assert found[1].split() == ["local", "1,234", "2", "of", "90", "5", "0", "0", "0", "22", "0", "0"]
    assert found[-3:] == ["local: doubled: cells 19", "local: ... 2 more", "local: stopped: a reason"]


def test_missing_emulator_and_unknown_target_are_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BIGQUERY_EMULATOR_HOST", raising=False)
    assert main(["emulator"]) == 2
    assert "BIGQUERY_EMULATOR_HOST is not set; run ci/kills" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["elsewhere"])
    assert "TARGET: must be one of local, emulator, fake, got 'elsewhere'" in capsys.readouterr().err


@pytest.mark.process
def test_killed_and_concurrent_local_pushes_leave_each_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "--kills", "5", "--pushes", "3", "--seed", "1"]) == 0, capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.google_client
def test_killed_and_concurrent_pushes_to_the_fake_leave_each_row_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    assert main(["fake", "--kills", "2", "--pushes", "2", "--seed", "1"]) == 0, capsys.readouterr().out


@pytest.mark.emulator
@pytest.mark.nightly
@pytest.mark.google_client
def test_killed_and_concurrent_pushes_to_the_emulator_leave_each_row_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    if not os.environ.get("BIGQUERY_EMULATOR_HOST"):
        pytest.skip("no BigQuery emulator: ci/emulator run -- .venv/bin/python -m pytest -m emulator")
    assert main(["emulator", "--kills", "2", "--pushes", "2", "--seed", "1"]) == 0, capsys.readouterr().out


CLIENT = (
    "import sys, urllib.request\nfor _ in range(3): urllib.request.urlopen(sys.argv[1] + '/v2', timeout=9).read()\n"
)


@pytest.mark.process
@pytest.mark.parametrize(("boundary", "received", "code"), [(2, 1, -9), (3, 2, -9), (6, 3, 0), (None, 3, 0)])
def test_proxy_kills_its_client_before_or_after_a_request(boundary: int | None, received: int, code: int) -> None:
    """The service is another proxy, which counts requests without forwarding them."""

    class Service(KillingProxy):
        def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> Answer:
            return 200, [], b"{}"

    service = Service("")
    with service as url:
        proxy = KillingProxy(url, boundary)
        with proxy as address:
            proxy.process = subprocess.Popen([sys.executable, "-c", CLIENT, address], text=True)
            ended = proxy.process.wait(timeout=60)
    assert (len(service.seen), ended, proxy.began.is_set()) == (received, code, True)


@pytest.mark.process
def test_a_command_is_killed_before_a_file_operation_or_reports_their_number(tmp_path: Path) -> None:
    root = results_with(tmp_path / "results", runs=1, count=1).root
    arguments = ["--to", f"local:{tmp_path / 'warehouse'}", "--results", str(root), "--quiet"]
    assert push_local(arguments, Kill(boundary=0)).code == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == [root]
    outcome = push_local(arguments, NEVER)
    assert (outcome.code, outcome.boundaries > 40) == (0, True)

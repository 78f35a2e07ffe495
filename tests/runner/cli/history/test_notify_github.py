"""`runner history --notify github:OWNER/REPO` through the real command line, against a fake of GitHub's REST API."""

from __future__ import annotations

import json
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.notify.github_issues import LABEL
from tests.conftest import MACHINE, make_settings
from tests.runner.cli.history.conftest import NEWER, Notified, more, traced
from tests.runner.notify.github_api import ISSUES, REPOSITORY, TOKEN, Answer, GitHubApi, Serving
from tests.sessions import nights, noisy, run_name

pytestmark = pytest.mark.process


def writes(api: GitHubApi) -> list[tuple[str, str]]:
    return [(method, path) for method, path in api.requests if method != "GET"]


def states(api: GitHubApi) -> list[tuple[str, str | None]]:
    return [(one["state"], one["state_reason"]) for one in api.issues]


def test_a_change_opens_one_issue_with_what_a_reader_needs(slower: Notified, api: GitHubApi) -> None:
    [line] = slower("--owner", "@alice", "--site", "https://bench.example/site/")
    assert line.startswith(f"opened: https://github.example/{REPOSITORY}/issues/1: mnist_mlp batch_size=32 on jax")
    [issue] = api.issues
    assert re.fullmatch(
        rf"mnist_mlp batch_size=32 on jax: time per step \+10\.\d % since {run_name(20)}", issue["title"]
    )
    assert [label["name"] for label in issue["labels"]] == [LABEL]
    body = issue["body"]
    for part in (
        f"since session `{run_name(20)}`: 9.98 ms → 11.0 ms, means of 20 sessions and 10",
        "| owner | @alice |",
        "- `keras` `3.15.0` → `3.16.0`",
        "xychart-beta",
        'y-axis "time per step, ms"',
        "(https://bench.example/site/cells/9451",
        "python3 -m venv base && base/bin/pip install keras==3.15.0 jax==0.10.0",
        "new/bin/pip install keras==3.16.0 jax==0.10.0",
        "new/bin/pip install --no-deps keras-hub==0.32.0",
        "runner gate --base-env base --new-env new --filter workload=mnist_mlp --filter backend=jax",
        "--filter backend=jax --filter batch_size=32\n",
        f"runner bisect {cell_id(make_settings())} --package keras --good 3.15.0 --bad 3.16.0",
        "No session on both sides of the change has a trace",
    ):
        assert part in body


def test_packages_that_changed_a_session_before_are_measured_with_those_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: commands() takes the sessions on both sides of the change, whatever changed before."""
    monkeypatch.chdir(tmp_path)
    values = noisy(0.0100, 20)
    nights(tmp_path / "results", values[:19])
    nights(tmp_path / "results", values[19:], first=19, versions=NEWER)
    nights(tmp_path / "results", noisy(0.0110, 10, seed=5), first=20, versions=NEWER)
    assert main(["history", "--notify", f"github:{REPOSITORY}", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "(1 session before)" in said
    assert "base/bin/pip install keras==3.15.0 jax==0.10.0" in said
    assert "new/bin/pip install keras==3.16.0 jax==0.10.0" in said


def test_round_trip_opens_once_closes_and_opens_another_for_a_new_change(slower: Notified, api: GitHubApi) -> None:
    slower()
    assert slower() == ["nothing to send: every change for the worse was sent before, or is acknowledged or repaired"]
    assert writes(api) == [("POST", "")]

    more(slower, 30, 0.0100)
    [line] = slower()
    assert line.startswith("recovered: ")
    assert states(api) == [("closed", "completed")]
    assert f"no longer worse since {run_name(30)}" in api.comments[1][0]
    assert slower()[0].startswith("nothing to send")

    more(slower, 40, 0.0120)
    [line] = slower()
    assert line.startswith(f"opened: https://github.example/{REPOSITORY}/issues/2")
    assert states(api) == [("closed", "completed"), ("open", None)]
    assert f"since {run_name(40)}" in api.issues[1]["title"]


def test_issue_has_the_trace_difference_if_both_sides_have_a_trace(notified: Notified, api: GitHubApi) -> None:
    more(notified, 0, 0.0100, 19)
    traced(notified, 19, 0.0100, 0.080)
    more(notified, 20, 0.0110, 9)
    notified("--dry-run")
    traced(notified, 29, 0.0110, 0.090)
    notified()
    assert "- `mm|'x'`: 8.00 ms → 9.00 ms per step" in api.issues[0]["body"].splitlines()


def test_change_that_grows_with_further_sessions_is_commented_not_opened_anew(
    notified: Notified, api: GitHubApi
) -> None:
    more(notified, 0, 0.0100, 20)
    more(notified, 20, 0.0105, 3)
    assert notified()[0].startswith("opened: ")
    more(notified, 23, 0.0107, 15)
    assert notified()[0].startswith("grown: ")
    assert notified()[0].startswith("nothing to send")
    [comment] = api.comments[1]
    assert "the change has grown: time per step +6." in comment
    assert "xychart-beta" in comment
    assert writes(api) == [("POST", ""), ("POST", "/1/comments"), ("PATCH", "/1")]
    more(notified, 38, 0.0100)
    assert notified()[0].startswith("recovered: ")
    assert (states(api), len(api.comments[1])) == ([("closed", "completed")], 2)


def test_nothing_is_sent_without_the_flag(slower: Notified, api: GitHubApi) -> None:
    slower.run()
    slower.run("mnist_mlp", "--json")
    assert api.requests == []


def test_steady_and_faster_cells_send_nothing(notified: Notified, api: GitHubApi) -> None:
    nights(notified.folder / "results", [*noisy(0.0100, 20), *noisy(0.0090, 10, seed=5)])
    nights(notified.folder / "results", noisy(0.2, 30), first=40, settings=make_settings(workload="bert"))
    assert notified()[0].startswith("nothing to send")
    assert writes(api) == []


def test_dry_run_prints_the_requests_that_a_real_run_sends_and_sends_none(slower: Notified, api: GitHubApi) -> None:
    head, *rest = slower("--dry-run")
    assert head.startswith("POST http://127.0.0.1:")
    assert head.endswith(ISSUES)
    assert writes(api) == []
    at = rest.index("body:")
    sent = {**json.loads("\n".join(rest[:at])), "body": "\n".join(rest[at + 1 :])}
    slower()
    assert sent == {
        **{name: api.issues[0][name] for name in ("title", "body")},
        "labels": [label["name"] for label in api.issues[0]["labels"]],
    }
    assert slower("--dry-run") == ["nothing to send"]


def test_dry_run_of_a_later_event_prints_the_comment_and_the_change_of_the_issue(
    slower: Notified, api: GitHubApi
) -> None:
    slower()
    more(slower, 30, 0.0100)
    lines = slower("--dry-run")
    assert [line.partition("/issues/1")[2] for line in lines if line.startswith(("POST", "PATCH"))] == ["/comments", ""]
    assert '  "state": "closed",' in lines
    assert states(api) == [("open", None)]


def test_dry_run_without_a_token_needs_no_network(
    slower: Notified, api: GitHubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_TOKEN")
    assert slower("--dry-run")[0] == "GITHUB_TOKEN is not set: printed as if nothing had been sent before"
    assert api.requests == []


@pytest.mark.parametrize("off", [-2, 2])
def test_change_whose_position_moved_by_two_sessions_keeps_its_issue(
    slower: Notified, api: GitHubApi, off: int
) -> None:
    """Mutation: `MOVES` is 1."""
    slower()
    api.issues[0]["body"] = api.issues[0]["body"].replace(
        f'"run_id":"{run_name(20)}"', f'"run_id":"{run_name(20 + off)}"'
    )
    assert slower()[0].startswith("nothing to send")
    assert len(api.issues) == 1


def test_issue_that_a_person_closed_stays_closed_and_a_new_change_opens_another(
    slower: Notified, api: GitHubApi
) -> None:
    slower()
    api.issues[0].update(state="closed", state_reason="not_planned")
    assert slower()[0].startswith("nothing to send")
    more(slower, 30, 0.0130)
    slower()
    assert states(api) == [("closed", "not_planned"), ("open", None)]
    assert api.comments == {}


def test_issue_that_a_person_reopened_is_left_alone(slower: Notified, api: GitHubApi) -> None:
    slower()
    more(slower, 30, 0.0100)
    slower()
    api.issues[0].update(state="open", state_reason="reopened")
    assert slower()[0].startswith("nothing to send")


def test_issue_closed_as_recovered_is_reopened_if_that_was_premature(slower: Notified, api: GitHubApi) -> None:
    slower()
    api.issues[0]["body"] = api.issues[0]["body"].replace('"last":"opened"', '"last":"recovered"')
    api.issues[0].update(state="closed", state_reason="completed")
    assert slower()[0].startswith("reopened: ")
    assert api.issues[0]["state"] == "open"
    assert slower()[0].startswith("nothing to send")


def test_acknowledged_change_opens_no_issue_until_the_note_is_withdrawn(slower: Notified, api: GitHubApi) -> None:
    slower.run("ack", "jax:*", "--run", run_name(20), "--reason", "wait for jax 0.13")
    assert slower()[0].startswith("nothing to send")
    assert writes(api) == []
    slower.run("ack", "jax:*", "--run", run_name(20), "--withdraw")
    assert slower()[0].startswith("opened: ")


def test_acknowledged_change_is_not_commented_but_closed_on_recovery(slower: Notified, api: GitHubApi) -> None:
    slower()
    api.issues[0]["body"] = api.issues[0]["body"].replace('"slower_by":1.1', '"slower_by":1.0')
    slower.run("ack", "mnist_mlp", "--run", run_name(20), "--reason", "known")
    assert slower()[0].startswith("nothing to send")
    more(slower, 30, 0.0100)
    assert slower()[0].startswith("recovered: ")


def test_change_that_is_annotated_later_closes_its_issue_with_the_note(slower: Notified, api: GitHubApi) -> None:
    slower()
    slower.run("annotate", "mnist_mlp", "--run", run_name(21), "--note", "larger images, @all <b>")
    assert slower()[0].startswith("intended: ")
    assert states(api) == [("closed", "not_planned")]
    assert "the change is intended: larger images, @all <b>`" in api.comments[1][0]


def test_change_that_further_sessions_disprove_closes_its_issue(slower: Notified, api: GitHubApi) -> None:
    slower()
    api.issues[0]["body"] = api.issues[0]["body"].replace(run_name(20), run_name(10))
    lines = slower()
    assert [line.partition(":")[0] for line in lines] == ["opened", "gone"]
    assert states(api) == [("closed", "not_planned"), ("open", None)]


def test_each_machine_and_cell_has_its_own_issue(slower: Notified, api: GitHubApi) -> None:
    other = replace(MACHINE, host_id="1" * 16)
    nights(slower.folder / "other", [*noisy(0.0100, 20), *noisy(0.0120, 10, seed=5)], first=40, machine=other)
    slower("--results", "results", "--results", "other")
    assert len(api.issues) == 2
    assert slower("--results", "results", "--results", "other")[0].startswith("nothing to send")


def test_an_issue_on_a_later_page_is_found_and_pull_requests_and_other_issues_are_passed_over(
    slower: Notified, api: GitHubApi
) -> None:
    """Mutation: only the first page is read."""
    slower()
    label = [{"id": 1, "name": LABEL}]
    marker = api.issues[0]["body"].splitlines()[0]
    api.add(title="A pull request", body=marker, labels=label, pull_request={}, state="closed")
    for number in range(250):
        api.add(title=f"Another {number}", body="no marker" if number % 2 else None, labels=label)
    api.add(body="<!-- keras-matrix {broken} -->", labels=label)
    api.requests.clear()
    assert slower()[0].startswith("nothing to send")
    assert api.requests == [("GET", "")] * 3


def test_two_runners_at_the_same_time_leave_one_open_issue(slower: Notified, api: GitHubApi) -> None:
    """Another runner opens the same issue after this one read the list, before it opens its own."""

    def other_opens(method: str, path: str) -> Answer | None:
        if (method, path) == ("POST", ISSUES) and not api.issues:
            api.add(title="first", body=bodies[0], labels=[{"id": 1, "name": LABEL}])
        return None

    lines = slower("--dry-run")
    bodies = ["\n".join(lines[lines.index("body:") + 1 :])]
    api.fails = other_opens
    assert [line.partition(":")[0] for line in slower()] == ["opened", "duplicate"]
    assert states(api) == [("open", None), ("closed", "not_planned")]
    assert "Duplicate of #1" in api.comments[2][0]
    assert slower()[0].startswith("nothing to send")


def test_duplicate_that_the_list_did_not_show_yet_is_closed_by_the_next_run(slower: Notified, api: GitHubApi) -> None:
    slower()
    api.add(title="late", body=api.issues[0]["body"], labels=[{"id": 1, "name": LABEL}])
    assert slower()[0].startswith("duplicate: ")
    assert states(api) == [("open", None), ("closed", "not_planned")]


def failing(status: int, message: str, **headers: str) -> Any:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda method, path: (status, {"message": message}, found)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (failing(401, "Bad credentials"), "the token of GITHUB_TOKEN is not valid or has expired"),
        (failing(403, "Resource not accessible by integration"), "may not do this; give it the permission"),
        (failing(403, "API rate limit exceeded for user", x_ratelimit_remaining="0", x_ratelimit_reset="1800000000"),
         "rate limit is reached (HTTP 403); it accepts requests again at 2027-01-15 08:00:00 UTC"),
        (failing(403, "You have exceeded a secondary rate limit", Retry_After="60"), "requests again in 60 s"),
        (failing(403, "You have exceeded a secondary rate limit"), "limit is reached (HTTP 403); try again in some"),
        (failing(429, "Too many requests", Retry_After="7"), "rate limit is reached (HTTP 429)"),
        (failing(429, "Too many requests"), "try again in some minutes"),
        (failing(404, "Not Found"), "there is no such repository, or the token of GITHUB_TOKEN may not read"),
        (failing(410, "Issues are disabled for this repo"), "issues are switched off"),
        (failing(422, "Validation Failed"), "does not accept the content"),
        (failing(301, "Moved Permanently", Location="https://elsewhere.example/x"), "cannot reach http://127.0.0.1"),
        (failing(500, "oops"), "GitHub failed (HTTP 500: oops)"),
        (lambda method, path: (502, b"<html>Bad Gateway</html>", {}), "GitHub failed (HTTP 502"),
        (lambda method, path: (200, b"<html>a login page</html>", {}), "did not answer with a list"),
        (lambda method, path: (200, b'{"torn', {}), "cannot reach"),
        (failing(403, f"your header was: token {TOKEN}"), "your header was: token ***"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_error_without_the_token_and_the_next_run_sends(
    slower: Notified, api: GitHubApi, answer: Any, expected: str
) -> None:
    api.fails = answer
    [line] = slower(code=3)
    assert line.startswith(f"runner: github:{REPOSITORY}: ")
    assert expected in line
    assert line.endswith("nothing is lost: the next run sends what is due")
    assert TOKEN not in slower.text
    api.fails = lambda method, path: None
    assert slower()[0].startswith("opened: ")


@pytest.mark.parametrize("failed", ["/1/comments", "/1"])
def test_event_whose_requests_failed_half_way_is_completed_without_a_second_comment(
    slower: Notified, api: GitHubApi, failed: str
) -> None:
    """Mutation: existing comments are not looked at."""
    slower()
    more(slower, 30, 0.0100)
    api.fails = lambda method, path: (502, {}, {}) if method != "GET" and path == ISSUES + failed else None
    slower(code=3)
    api.fails = lambda method, path: None
    assert slower()[0].startswith("recovered: ")
    assert [len(written) for written in api.comments.values()] == [1]
    assert states(api) == [("closed", "completed")]


def test_failure_after_some_were_sent_says_how_many_and_the_rest_follows(slower: Notified, api: GitHubApi) -> None:
    values = [*noisy(0.200, 20), *noisy(0.240, 10, seed=5)]
    nights(slower.folder / "results", values, first=40, settings=make_settings(workload="bert"))
    api.fails = lambda method, path: (500, {}, {}) if method == "POST" and api.issues else None
    assert "1 of 2 sent; nothing is lost" in slower(code=3)[0]
    api.fails = lambda method, path: None
    assert len(slower()) == 1
    assert len(api.issues) == 2


def test_network_that_is_down_is_one_error(slower: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving(lambda *_: (200, [], {})) as url:
        pass
    monkeypatch.setenv("GITHUB_API_URL", url)
    [line] = slower(code=3)
    assert f"cannot reach {url}: [Errno 111] Connection refused; nothing is lost" in line
    assert TOKEN not in slower.text


def test_token_that_may_not_label_leaves_no_issue_that_would_be_opened_every_night(
    slower: Notified, api: GitHubApi
) -> None:
    api.may_label = False
    assert "GitHub did not set the label" in slower(code=3)[0]
    assert states(api) == [("closed", None)]


def test_token_of_a_file_is_used_and_its_name_is_not_a_secret(
    slower: Notified, api: GitHubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "expired")
    (slower.folder / "token").write_text(f"{TOKEN}\n")
    assert slower("--token-file", "token")[0].startswith("opened: ")
    assert TOKEN not in slower.text + "".join(path.read_text() for path in slower.folder.rglob("*.json*"))


def test_missing_client_library_is_one_error_with_its_extra(slower: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "github", None)
    assert "pip install 'keras-matrix[notify]'" in slower(code=2)[0]


def test_two_real_runners_at_once_leave_one_open_issue(slower: Notified, api: GitHubApi) -> None:
    """Both have read the empty list before either opens an issue."""
    gate = threading.Barrier(2, timeout=30)

    def wait_for_both(method: str, path: str) -> Answer | None:
        if (method, path) == ("POST", ISSUES):
            gate.wait()
        return None

    api.fails = wait_for_both
    runners = [threading.Thread(target=main, args=(["history", "--notify", slower.place],)) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(60)
    assert [one["state"] for one in api.issues] == ["open", "closed"]
    assert slower()[-1].startswith("nothing to send")


def test_results_folder_is_not_changed(slower: Notified, tmp_path: Path) -> None:
    before = sorted(path for path in tmp_path.rglob("*"))
    slower()
    assert sorted(path for path in tmp_path.rglob("*")) == before

"""`runner history --notify webhook:URL` through the real command line, against a server on the loopback interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

import pytest

from keras_matrix.runner.cli.main import main
from keras_matrix.runner.notify.webhook import FILE
from tests.runner.cli.history.conftest import Notified, more, traced
from tests.runner.notify.github_api import Answer, Serving
from tests.sessions import nights, noisy, run_name

pytestmark = pytest.mark.process

PATH = "/services/T0/SECRET"


class Hook:
    """Stores the documents that it is posted, and answers with `status`."""

    def __init__(self) -> None:
        self.status, self.headers, self.got = 200, dict[str, str](), list[Any]()
        self.meanwhile: Callable[[], None] = lambda: None

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        assert (method, target, headers["Content-Type"]) == ("POST", PATH, "application/json")
        self.meanwhile()
        if self.status == 200:
            self.got.append(json.loads(body))
        return self.status, b"ok SECRET", self.headers

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.got]


@pytest.fixture
def hook(notified: Notified) -> Iterator[Hook]:
    found = Hook()
    with Serving(found.answer) as url:
        notified.place = f"webhook:{url}{PATH}"
        yield found


def test_document_has_the_change_with_its_cause_its_commands_and_its_picture(slower: Notified, hook: Hook) -> None:
    slower("--owner", "jax:*=@octo/speed")
    [found] = hook.got
    change = found["change"]
    assert (found["version"], found["event"], found["owner"], found["page"]) == (1, "opened", "@octo/speed", None)
    assert found["cell"]["title"] == "mnist_mlp batch_size=32 on jax"
    assert (change["run_id"], change["before"]["sessions"], change["after"]["sessions"]) == (run_name(20), 20, 10)
    assert change["slower_by"] == pytest.approx(0.104, abs=0.005)
    assert change["changed"] == [{"name": "keras", "before": "3.15.0", "after": "3.16.0", "sessions_off": 0}]
    assert found["reproduce"][0] == f"runner history {found['cell']['id']}"
    assert found["traces"] is None
    assert ElementTree.fromstring(found["picture_svg"]).tag.endswith("svg")
    assert found["text"].startswith("mnist_mlp batch_size=32 on jax: time per step +10")


def test_document_has_the_trace_difference_also_of_a_change_that_grows(notified: Notified, hook: Hook) -> None:
    """Mutation: `_about` compares the traces of `opened` alone."""
    more(notified, 0, 0.0100, 19)
    traced(notified, 19, 0.0100, 0.080)
    more(notified, 20, 0.0105, 3)
    notified()
    traced(notified, 23, 0.0107, 0.090)
    more(notified, 24, 0.0107, 14)
    notified()
    assert hook.events == ["opened", "grown"]
    assert [one["traces"] for one in hook.got] == [None, [{"name": "mm|`x`", "before_s": 0.008, "after_s": 0.009}]]


def test_round_trip_sends_each_event_once(slower: Notified, hook: Hook) -> None:
    slower()
    slower()
    assert hook.events == ["opened"]
    path = slower.folder / "results" / FILE
    path.write_text(path.read_text().replace('"slower_by": 1.1', '"slower_by": 1.0'))
    slower()
    slower()
    assert hook.events == ["opened", "grown"]
    nights(slower.folder / "results", noisy(0.0100, 10, seed=3), first=30)
    slower()
    slower()
    assert hook.events == ["opened", "grown", "recovered"]
    nights(slower.folder / "results", noisy(0.0120, 10, seed=4), first=40)
    slower()
    assert hook.events == ["opened", "grown", "recovered", "opened"]
    assert hook.got[0]["id"] == hook.got[2]["id"] != hook.got[3]["id"]


def test_change_that_further_sessions_disprove_is_gone(slower: Notified, hook: Hook) -> None:
    """Mutation: `document` describes a change in each event."""
    slower()
    path = slower.folder / "results" / FILE
    path.write_text(path.read_text().replace(run_name(20), run_name(10)))
    slower()
    assert hook.events == ["opened", "opened", "gone"]
    assert hook.got[2]["change"] is None
    assert "reproduce" not in hook.got[2]


def test_two_runners_at_the_same_time_send_each_event_once(slower: Notified, hook: Hook) -> None:
    """Mutation: `json_lines.opened` does not lock the file."""
    command = ["history", "--notify", slower.place]
    second = threading.Thread(target=main, args=(command,))

    def start_the_second() -> None:
        if second.ident is None:
            second.start()
            second.join(2)

    hook.meanwhile = start_the_second
    slower()
    second.join(60)
    assert not second.is_alive()
    assert hook.events == ["opened"]


def test_run_length_decides_what_is_sent(slower: Notified, hook: Hook) -> None:
    """Mutation: `send` gives no run length."""
    nights(slower.folder / "small", [*noisy(0.01, 15), *noisy(0.01014, 10, seed=5)])
    slower("--results", "small", "--false-alarm-every", "3000")
    assert hook.events == []
    slower("--results", "small", "--false-alarm-every", "300")
    assert hook.events == ["opened"]


def test_another_address_is_notified_for_itself(slower: Notified, hook: Hook) -> None:
    slower()
    with Serving(hook.answer) as url:
        slower.place = f"webhook:{url}{PATH}"
        slower()
    assert hook.events == ["opened", "opened"]


def test_dry_run_prints_the_document_without_the_secret_and_writes_nothing(slower: Notified, hook: Hook) -> None:
    head, *rest = slower("--dry-run")
    assert head == "POST webhook:http://127.0.0.1/..."
    assert hook.got == []
    assert not (slower.folder / "results" / FILE).exists()
    slower()
    assert hook.got == [json.loads("\n".join(rest))]


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (500, {}, "answered HTTP 500"),
        (401, {}, "answered HTTP 401"),
        (429, {"Retry-After": "30"}, "answered HTTP 429; it accepts requests again in 30 s"),
        (
            302,
            {"Location": "/elsewhere"},
            "answered HTTP 302; redirects are not followed: name the address that it redirects to",
        ),
    ],
)
def test_refused_document_is_one_error_without_the_secret_and_sent_by_the_next_run(
    slower: Notified, hook: Hook, status: int, headers: dict[str, str], expected: str
) -> None:
    hook.status, hook.headers = status, headers
    [line] = slower(code=3)
    assert line == f"runner: webhook:http://127.0.0.1/...: {expected}; 0 of 1 sent; nothing is lost: the next run " + (
        "sends what is due"
    )
    hook.status, hook.headers = 200, {}
    slower()
    assert hook.events == ["opened"]


def test_address_that_does_not_answer_is_one_error_without_the_secret(slower: Notified) -> None:
    with Serving(lambda *_: (200, [], {})) as url:
        pass
    slower.place = f"webhook:{url}{PATH}"
    [line] = slower(code=3)
    assert "webhook:http://127.0.0.1/...: cannot be reached: [Errno 111] Connection refused" in line
    assert "SECRET" not in line


def test_address_is_not_stored(slower: Notified, hook: Hook) -> None:
    slower()
    assert "SECRET" not in (slower.folder / "results" / FILE).read_text()


def test_damaged_file_of_deliveries_sends_nothing(slower: Notified, hook: Hook) -> None:
    (slower.folder / "results" / FILE).write_text("{torn\n")
    [line] = slower(code=3)
    assert f"{FILE}: line 1: " in line
    assert "nothing was sent" in line
    assert hook.got == []

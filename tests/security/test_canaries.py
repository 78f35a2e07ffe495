"""No output contains a secret of the caller: real commands run with secrets in their environment, home and arguments.

Searched is all that they write: results, warehouse, logs, reports, the site, TensorBoard's files, temporary files, and
the standard streams. Cells and commands print all they can find out, and end in every way.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keras_matrix.records.host.inherited_environment import MARK
from tests.canaries import CANARY, FOUND, SECRETS, leaks, write_home
from tests.runner.notify.github_api import REPOSITORY, TOKEN, Answer, GitHubApi, Serving
from tests.sessions import nights, processes, run_name, store_session
from tests.uploader.service.server import Server

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("canaries")]
ROOT = Path(__file__).parents[2]
MATRIX = """\
version: 1
defaults: {repeats: 1, epochs: 2, discard: 1, steps_per_epoch: 2, batch_size: 8, timeout_s: 60}
backends: [torch]
cells:
  - workload: leaking:raising
  - workload: leaking:crashing
  - workload: leaking:leaving
  - workload: leaking:training
  - workload: leaking:printing
  - {workload: fc, mode: fc_data, workers: 2}
tasks:
  - {task: environment, command: [/usr/bin/env], inherit: all, environment: {HOME: /nonexistent}}
  - {task: fails, command: [/bin/sh, -c, "env >&2; cat ~/.netrc ~/.aws/credentials; exit 3"]}
  - {task: missing, command: [no-such-program], inherit: all}
"""
CFG = """\
[section]
command_to_execute = env; exit 1
patterns = ['speed (.*)']
metrics = ['speed']
compute_method = ['average']
num_gpus = 0
"""
KEY = {
    "type": "service_account",
    "project_id": "some-project",
    "private_key_id": f"{CANARY}_private_key_id",
    "private_key": f"-----BEGIN PRIVATE KEY-----\n{CANARY}_private_key\n-----END PRIVATE KEY-----\n",
    "client_email": "uploader@some-project.iam.gserviceaccount.com",
    "token_uri": "https://oauth2.googleapis.com/token",
}
USER = {
    "type": "authorized_user",
    "client_id": "id",
    "client_secret": f"{CANARY}_client_secret",
    "refresh_token": f"{CANARY}_refresh_token",
}
START_LIMIT_S = 120.0  # of a dashboard on a busy machine
INHERITS_ALL = "/bin/sh -c env; exit 1 "
TO = ["--to", "bigquery://some-project.benchmarks", "--results", "results"]


@dataclass(slots=True)
class Caller:
    """Runs commands in a project's folder, as a caller with secrets, and collects what they print."""

    folder: Path
    printed: dict[str, bytes] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)  # environments of the processes of cells

    def run(self, name: str, module: str, *arguments: str, **environment: str) -> None:
        """Run a command to its end, and collect the environments of the cells' processes meanwhile."""
        before = {process.name for process in Path("/proc").glob("[0-9]*")}
        with self.started(name, module, *arguments, **environment) as child:
            while child.poll() is None:
                self._look(before | {str(child.pid)})
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.1)
        self.codes[name] = child.returncode

    @contextmanager
    def started(self, name: str, module: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command, wait for its end when the block ends, and collect what it printed into `output`."""
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.folder.parent / "home"), **SECRETS, **environment}
        variables |= {"TMPDIR": str(self.folder / "tmp")}
        with self.output.open("wb") as out:
            command = [sys.executable, "-P", "-m", f"keras_matrix.{module}", *arguments]
            with subprocess.Popen(command, cwd=self.folder, env=variables, stdout=out, stderr=out) as child:
                yield child
        self.printed[name] = self.output.read_bytes()

    @property
    def output(self) -> Path:
        """The file of what the present command prints."""
        return self.folder.parent / "stdout"

    def _look(self, others: set[str]) -> None:
        """Note the environments of the cells' processes, which are not among these."""
        for process in Path("/proc").glob("[0-9]*"):
            if process.name in others:
                continue
            with suppress(OSError):  # it has ended
                text = (process / "environ").read_bytes().decode(errors="replace")
                words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                found = dict(one.split("=", 1) for one in text.split("\0") if "=" in one)
                if str(self.folder) in found.get(MARK, ""):
                    self.seen[words] = found


@contextmanager
def proxy() -> Iterator[str]:
    """Serve a proxy on the loopback that refuses every connection for want of a password."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    found = server.accept()[0]
                except OSError:
                    return
                with found:
                    found.recv(4096)
                    found.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://user:{CANARY}_proxy@127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def project_of(above: Path) -> Caller:
    """Return a caller with a project, and credentials next to it."""
    write_home(above / "home")
    made = Caller(above / "project")
    (made.folder / "tmp").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "workloads" / "leaking.py", made.folder)
    (made.folder / "matrix.yaml").write_text(MATRIX)
    (made.folder / "task.cfg").write_text(CFG)
    for name, key in (("key", KEY), ("user", USER)):
        (above / f"{name}.json").write_text(json.dumps(key))
    return made


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Caller:
    """A caller who has measured, reported, and sent the results to several places that refused them."""
    made = project_of(tmp_path_factory.mktemp("caller"))
    made.run("fork", "runner", "--start", "fork", "--log-dir", "tensorboard", "--set", "seed=1")
    made.run(
        "fresh", "runner", "--start", "fresh", "--new", "--upload", "local", "--filter", "workload=leaking:raising"
    )
    made.run("cfg", "runner", "task", "--config", "task.cfg", "--results", "results")
    for command in ("plan", "list", "report", "history"):
        made.run(command, "runner", command)
    made.run("site", "runner", "report", "--publish", "site")
    made.run("merge", "runner", "report", "--merge")
    made.run("check", "runner", "check", "--seconds", "3")
    made.run("docker", "runner", "--executor", "docker", DOCKER_HOST=f"tcp://user:{CANARY}_docker@127.0.0.1:9")
    made.run("ray", "runner", "--executor", "ray", "--address", f"ray://user:{CANARY}_ray@127.0.0.1:9")
    made.run("bad flag", "runner", "report", "--run", "nothing")
    _trace_and_rebuild(made)
    made.run("push", "uploader", "push", "--results", "results")
    made.run("status", "uploader", "status", "--results", "results")
    _push_elsewhere(made)
    _notify(made)
    return made


def _trace_and_rebuild(made: Caller) -> None:
    """Trace a cell, measure it again, and ask for an environment from a package index that does not answer."""
    cell = "torch:leaking:printing"
    made.run("trace", "runner", "trace", cell, "--steps", "2", "--to", "trace.json.gz")
    made.run("reproduce", "runner", "reproduce", cell, "--repeats", "2")
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"https://user:{CANARY}_pip@127.0.0.1:9/simple"}
    made.run("bisect", "runner", "bisect", cell, "--package", "keras", "--good", "3.10.0", "--bad", "3.11.0", **index)


def _notify(made: Caller) -> None:
    """Notify of a slowdown: open an issue, whose requests count as printed, and post to an address that refuses."""
    nights(made.folder / "nights", [0.01] * 12 + [0.02] * 6)
    command = ("history", "--results", "nights", "--notify")
    api, sent = GitHubApi(), list[bytes]()

    def answer(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        sent.append(target.encode() + body)
        return api.answer(method, target, {**headers, "Authorization": f"token {TOKEN}"}, body)

    with Serving(answer) as url:
        direct = {"GITHUB_API_URL": f"{url}/api/v3", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        made.run("issue", "runner", *command, f"github:{REPOSITORY}", **direct)
    made.printed["requests of the issue"] = b"\n".join(sent)
    assert api.issues, made.printed["issue"].decode()
    made.run("webhook", "runner", *command, f"webhook:http://127.0.0.1:9/{CANARY}_webhook")


def _push_elsewhere(made: Caller) -> None:
    emulator = f"http://user:{CANARY}_emulator@127.0.0.1:9"
    made.run("no emulator", "uploader", "push", *TO, BIGQUERY_EMULATOR_HOST=emulator)
    with Server() as url:
        direct = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        made.run("no dataset", "uploader", "push", *TO, BIGQUERY_EMULATOR_HOST=url, **direct)
        made.run(
            "other account", "uploader", "init", *TO, BIGQUERY_EMULATOR_HOST=f"{url}/as/{CANARY}_account", **direct
        )
    with proxy() as address:
        through = {"HTTPS_PROXY": address, "https_proxy": address, "NO_GCE_CHECK": "true"}
        key = str(made.folder.parent / "key.json")
        made.run("key", "uploader", "push", *TO, GOOGLE_APPLICATION_CREDENTIALS=key, **through)
        made.run("home", "uploader", "push", *TO, **through)
    made.run("bad proxy", "uploader", "push", *TO, HTTPS_PROXY=f"user:{CANARY}_bad@:x")


def test_commands_ended_as_expected(caller: Caller) -> None:
    """Otherwise less than intended was searched."""
    codes = {**caller.codes}
    for name in ("check", "reproduce"):  # which of their codes depends on how quiet the machine is
        assert codes.pop(name) in (0, 1, 4, 5)
    assert codes == {
        "fork": 1, "fresh": 1, "cfg": 1, "plan": 0, "list": 0, "report": 0, "history": 0, "site": 0, "merge": 0,
        "docker": 3, "ray": 3, "bad flag": 2, "trace": 0, "bisect": 3, "push": 0, "status": 0,
        "no emulator": 3, "no dataset": 3, "other account": 0, "key": 3, "home": 3, "bad proxy": 3,
        "issue": 0, "webhook": 3,
    }  # fmt: skip
    assert b"no engine answers at tcp://127.0.0.1:9" in caller.printed["docker"]
    assert b"2 of 2 processes" in caller.printed["reproduce"]


@pytest.mark.fault("F40", mutation="the message about an engine that does not answer contains its address as given")
def test_no_command_prints_a_secret(caller: Caller) -> None:
    found = {name: set(FOUND.findall(text)) for name, text in caller.printed.items()}
    assert {name: secrets for name, secrets in found.items() if secrets} == {}


@pytest.mark.nightly(why="two runs, a push and the pages are searched for a minute")
@pytest.mark.fault("F40", mutation="`cell_environment` begins with all variables of the caller")
def test_no_file_contains_a_secret(caller: Caller) -> None:
    assert leaks(caller.folder) == {}
    assert {path.name for path in caller.folder.iterdir()} >= {"results", "site", "tensorboard"}


@pytest.mark.fault("F31", mutation="`_light_server` of the process executor passes on the caller's environment")
def test_no_process_of_a_cell_has_a_secret_or_the_callers_home(caller: Caller) -> None:
    """Only a command that inherits all has that home."""
    for module in ("cell.server", "cell.entry"):
        assert any(module in words for words in caller.seen), module
    for words, environment in caller.seen.items():
        assert CANARY not in words + str(environment), words
        assert words == INHERITS_ALL or environment.get("HOME") != str(caller.folder.parent / "home"), words


def test_what_cells_printed_was_searched(caller: Caller) -> None:
    """Their environments reached the records and the report, in each way to end."""
    texts = [path.read_text() for path in (caller.folder / "results").glob("*/records/*.json")]
    for name in ("leaking:raising", "leaking:crashing", "leaking:leaving", "leaking:training", "task fails"):
        shown = [text for text in texts if f'"{name}"' in text]
        assert shown, name
        assert all("KERAS_BENCHMARK_RESULTS" in text for text in shown), name
    assert any("KERAS_BENCHMARK_RESULTS" in path.read_text() for path in (caller.folder / "site").rglob("*.html"))


@pytest.mark.fault("F40", mutation="a page of the dashboard shows the environment of its process")
def test_no_page_of_the_live_dashboard_contains_a_secret(caller: Caller) -> None:
    pytest.importorskip("waitress", reason="waitress is not installed: extra `dashboard`")
    with caller.started("dashboard", "runner", "dashboard", "--listen", "127.0.0.1:0") as server:
        try:
            pages = read_pages(address_in(caller.output, server))
        finally:
            server.terminate()
    assert "task fails" in pages["/"]
    assert len(pages) > 5  # of several cells
    assert {path: FOUND.findall(page.encode()) for path, page in pages.items() if FOUND.search(page.encode())} == {}
    assert FOUND.findall(caller.printed["dashboard"]) == []


def address_in(output: Path, server: subprocess.Popen[bytes]) -> str:
    """Wait for a dashboard to print the address at which it answers, and return it."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while not (found := re.search(r"http://127\.0\.0\.1:[0-9]+", output.read_text())):
        assert (server.poll(), time.monotonic() < deadline_s) == (None, True), output.read_text()
        with suppress(subprocess.TimeoutExpired):
            server.wait(0.1)
    return found[0]


def read_pages(url: str) -> dict[str, str]:
    """Return the first page, every page to which it links, and its answer about its health, by path."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def page(path: str) -> str:
        with direct.open(url + path, timeout=60) as answer:
            return str(answer.read().decode())

    first = page("/")
    linked = {html.unescape(path) for path in re.findall(r'href="(/?cell\?[^"]*)"', first)}
    return {"/": first, **{path: page("/" + path.lstrip("/")) for path in sorted({*linked, "health"})}}


@pytest.mark.nightly(why="Google's client tries again for a quarter of a minute")
@pytest.mark.fault("F40", mutation="`to_upload_error` adds the proxy's address from the environment")
def test_refused_proxy_and_expired_login_are_reported_without_a_secret(tmp_path: Path) -> None:
    made = project_of(tmp_path)
    store_session(made.folder / "results", run_name(0), processes(0.01))
    with proxy() as address:
        through = {"HTTPS_PROXY": address, "https_proxy": address, "NO_GCE_CHECK": "true"}
        user = str(tmp_path / "user.json")
        made.run("user", "uploader", "push", *TO, GOOGLE_APPLICATION_CREDENTIALS=user, **through)
    assert (made.codes, b"407" in made.printed["user"]) == ({"user": 3}, True)
    assert FOUND.findall(made.printed["user"]) == []
    assert leaks(made.folder) == {}

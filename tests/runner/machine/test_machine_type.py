"""The machine type: recognised without network, queried within a limit, and never guessed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.instruments.peaks import fingerprint as peaks_fingerprint
from keras_matrix.records.schema import Machine
from keras_matrix.runner.cli.main import main
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.machine import LIMIT_BYTES, Address, detect_type
from keras_matrix.runner.measure.seams import Seams
from tests.conftest import MACHINE
from tests.fakes.executor import FakeExecutor
from tests.sessions import newest_records

GOOGLE = ("product_name", "Google Compute Engine")
AMAZON = ("sys_vendor", "Amazon EC2")
AZURE = ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77")
Reply = Callable[[BaseHTTPRequestHandler], None]


class FakeMetadataServer:
    """Answers on the loopback interface as `reply` does, and records its requests."""

    def __init__(self) -> None:
        self.reply: Reply = text("n1-standard-8")
        self.requests: list[str] = []
        self.stopped = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

            def do_GET(self) -> None:
                fake.requests.append(f"{self.command} {self.path}")
                fake.reply(self)

            def do_PUT(self) -> None:
                self.do_GET()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def address(self, limit_s: float = 20.0) -> Address:
        return Address("127.0.0.1", self.server.server_address[1], limit_s)

    def close(self) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def fake() -> Iterator[FakeMetadataServer]:
    made = FakeMetadataServer()
    yield made
    made.close()


@pytest.fixture
def dmi(tmp_path: Path) -> Callable[[tuple[str, str]], Path]:
    def of(cloud: tuple[str, str]) -> Path:
        (tmp_path / cloud[0]).write_text(f"{cloud[1]}\n")
        return tmp_path

    return of


def text(body: str, status: int = 200) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body.encode())))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return reply


def only_with(header: str, value: str, body: str) -> Reply:
    """Refuse a request without a header, as the real servers do."""
    return lambda handler: text(*((body,) if handler.headers[header] == value else ("missing header", 403)))(handler)


def amazon(handler: BaseHTTPRequestHandler) -> None:
    if handler.command == "PUT":
        only_with("X-aws-ec2-metadata-token-ttl-seconds", "60", "AQAEA-token==")(handler)
    else:
        only_with("X-aws-ec2-metadata-token", "AQAEA-token==", "g5.xlarge")(handler)


@pytest.mark.parametrize(
    ("cloud", "reply", "expected", "requests"),
    [
        (
            GOOGLE,
            only_with("Metadata-Flavor", "Google", "projects/123/machineTypes/n1-standard-8"),
            "n1-standard-8",
            ["GET /computeMetadata/v1/instance/machine-type"],
        ),
        (AMAZON, amazon, "g5.xlarge", ["PUT /latest/api/token", "GET /latest/meta-data/instance-type"]),
        (
            AZURE,
            only_with("Metadata", "true", "Standard_NC6"),
            "Standard_NC6",
            ["GET /metadata/instance/compute/vmSize?api-version=2021-02-01&format=text"],
        ),
    ],
    ids=["google", "amazon", "azure"],
)
def test_each_cloud_has_its_own_query(
    fake: FakeMetadataServer,
    dmi: Callable[[tuple[str, str]], Path],
    cloud: tuple[str, str],
    reply: Reply,
    expected: str,
    requests: list[str],
) -> None:
    fake.reply = reply
    assert detect_type({}, dmi(cloud), fake.address()) == expected
    assert fake.requests == requests


@pytest.mark.parametrize(
    "identity", [("product_name", "Standard PC"), ("sys_vendor", "Google Compute Engine"), ("other", "Amazon EC2")]
)
def test_a_machine_off_the_clouds_sends_no_request(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path], identity: tuple[str, str]
) -> None:
    assert detect_type({}, dmi(identity), fake.address()) is None
    assert fake.requests == []


def test_a_machine_without_dmi_has_no_type(tmp_path: Path) -> None:
    assert detect_type({}, tmp_path / "missing") is None


def test_variable_replaces_the_query(fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]) -> None:
    assert detect_type({machine.VARIABLE: "Standard_NC6"}, dmi(GOOGLE), fake.address()) == "Standard_NC6"
    assert fake.requests == []


def test_an_empty_variable_counts_as_not_set(fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]) -> None:
    assert detect_type({machine.VARIABLE: ""}, dmi(GOOGLE), fake.address()) == "n1-standard-8"


@pytest.mark.parametrize("value", ["n1 standard", "a" * 65, "n1\n", "<b>", "größer", "a/b"])
def test_invalid_variable_is_refused_with_its_value(value: str) -> None:
    with pytest.raises(UsageError) as raised:
        detect_type({machine.VARIABLE: value})
    expected = "KERAS_BENCHMARK_MACHINE_TYPE: must be 1 to 64 letters, digits, dots, underscores and hyphens, got "
    assert str(raised.value).startswith(expected + repr(value))


@pytest.mark.parametrize(
    "reply",
    [
        text("n1-standard-8", 404),
        text("n1-standard-8", 500),
        text(""),
        text("<html>portal</html>"),
        text("a" * 65),
        text("größer"),
        text("n1-standard-8\nX: y"),
        lambda handler: handler.wfile.write(b"garbage\r\n\r\n"),
        lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\nn1-standard-1"),
        lambda handler: None,
    ],
    ids=["404", "500", "empty", "html", "long", "letters", "two lines", "no http", "cut short", "closed"],
)
def test_answer_that_is_not_a_machine_type_is_not_used(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path], reply: Reply
) -> None:
    def closing(handler: BaseHTTPRequestHandler) -> None:
        reply(handler)
        handler.close_connection = True

    fake.reply = closing
    assert detect_type({}, dmi(GOOGLE), fake.address()) is None


def test_an_endless_answer_is_read_up_to_the_limit_only(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]
) -> None:
    sent = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        handler.close_connection = True
        while not fake.stopped.is_set():
            handler.connection.sendall(b"n" * 65536)
            sent.append(65536)

    fake.reply = lambda handler: ignoring_a_lost_client(endless, handler)
    assert detect_type({}, dmi(GOOGLE), fake.address()) is None
    assert sum(sent) < 64 << 20


def ignoring_a_lost_client(reply: Reply, handler: BaseHTTPRequestHandler) -> None:
    try:
        reply(handler)
    except OSError:
        handler.close_connection = True


def test_a_redirect_is_not_followed(fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    fake.reply = redirect
    assert detect_type({}, dmi(GOOGLE), fake.address()) is None
    assert fake.requests == ["GET /computeMetadata/v1/instance/machine-type"]


def test_a_proxy_of_the_environment_is_not_used(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert detect_type({}, dmi(GOOGLE), fake.address()) == "n1-standard-8"


def test_hanging_server_takes_no_longer_than_the_limit(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]
) -> None:
    fake.reply = lambda handler: assert_stopped(fake)
    assert within_limit(fake, dmi(GOOGLE))


def test_slow_server_takes_no_longer_than_the_limit(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]
) -> None:
    def dripping(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not fake.stopped.wait(0.01):
            handler.connection.sendall(b"n")

    fake.reply = lambda handler: ignoring_a_lost_client(dripping, handler)
    assert within_limit(fake, dmi(GOOGLE))


def test_both_requests_of_amazon_share_one_limit(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]
) -> None:
    fake.reply = lambda handler: text("token")(handler) if handler.command == "PUT" else assert_stopped(fake)
    assert within_limit(fake, dmi(AMAZON))
    assert len(fake.requests) == 2


def assert_stopped(fake: FakeMetadataServer) -> None:
    assert fake.stopped.wait(60)


def within_limit(fake: FakeMetadataServer, dmi: Path) -> bool:
    """Whether a server gives no type within 0.2 s; a busy machine may take longer, the server would for ever."""
    begun_s = time.monotonic()
    assert detect_type({}, dmi, fake.address(limit_s=0.2)) is None
    return 0.2 <= time.monotonic() - begun_s < 10


def test_the_limit_is_one_second_and_the_server_the_link_local_one() -> None:
    assert Address() == Address("169.254.169.254", 80, 1.0)


def test_missing_server_has_no_type(dmi: Callable[[tuple[str, str]], Path]) -> None:
    assert detect_type({}, dmi(GOOGLE), Address("127.0.0.1", 9)) is None


# In records.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    cells = "cells:\n  - workload: gru\n    repeats: 3\n"
    (tmp_path / "matrix.yaml").write_text(f"version: 1\nbackends: [tensorflow, jax]\n{cells}")
    return tmp_path


def runner(*arguments: str) -> int:
    return main(list(arguments), Seams(executor=FakeExecutor()))


def test_a_run_reads_the_type_once_for_all_of_its_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr(machine, "detect_type", lambda: reads.append(1) or "n1-standard-8")
    assert runner() == 0
    assert reads == [1]
    assert {(one.repeat, one.machine.machine_type) for one in newest_records(folder)} == {
        (repeat, "n1-standard-8") for repeat in range(3)
    }


def test_show_prints_the_type_of_a_service(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(machine.VARIABLE, "Standard_NC6")
    runner()
    capsys.readouterr()
    assert runner("show", "jax:gru") == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "machine_type" in line]
    assert line.split() == ["machine_type", "Standard_NC6"]


def test_a_bad_variable_ends_a_run_before_anything_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(machine.VARIABLE, "n1 standard")
    assert runner() == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("runner: KERAS_BENCHMARK_MACHINE_TYPE: must be 1 to 64 letters")
    assert list((folder / "results").glob("2*")) == []


def test_machine_type_is_not_part_of_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.VARIABLE, "n1-standard-8")
    there = machine.detect()
    monkeypatch.delenv(machine.VARIABLE)
    here = machine.detect()
    assert (there.machine_type, here.machine_type) == ("n1-standard-8", None)
    assert there.host_id == here.host_id
    assert peaks_fingerprint(there, {}) == peaks_fingerprint(here, {})


def test_a_machine_of_an_older_record_has_no_type() -> None:
    older = to_json(replace(MACHINE, machine_type="n1-standard-8"))
    del older["machine_type"]
    assert decode(Machine, older).machine_type is None


def test_identity_that_is_not_ascii_matches_no_cloud(tmp_path: Path) -> None:
    (tmp_path / "product_name").write_bytes(b"Ger\xe4t\n")
    assert detect_type({}, tmp_path, Address("192.0.2.1", limit_s=0.1)) is None


def test_a_token_that_would_add_a_header_is_not_sent_on(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]
) -> None:
    fake.reply = text("token\r\nX-Injected: 1")
    assert detect_type({}, dmi(AMAZON), fake.address()) is None
    assert fake.requests == ["PUT /latest/api/token"]


def test_an_answer_of_exactly_the_limit_is_used(
    fake: FakeMetadataServer, dmi: Callable[[tuple[str, str]], Path]
) -> None:
    fake.reply = text("/" * (LIMIT_BYTES - 13) + "n1-standard-8")
    assert detect_type({}, dmi(GOOGLE), fake.address()) == "n1-standard-8"
    fake.reply = text("/" * (LIMIT_BYTES - 12) + "n1-standard-8")
    assert detect_type({}, dmi(GOOGLE), fake.address()) is None

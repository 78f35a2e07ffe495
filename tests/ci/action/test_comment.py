"""The comment on a pull request: GitHub alone names the pull request, and the artifact is text without effect."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ci.action.comment import comment
from ci.action.comment.comment import Refused, harmless

SHA = "a" * 40
MARK = "<!-- keras-matrix of keras-matrix -->"
BRANCH = "topic/a&b=c"
RUN = {
    "id": 77,
    "html_url": "https://github.com/team/project/actions/runs/77",
    "event": "pull_request",
    "head_sha": SHA,
    "head_branch": BRANCH,
    "head_repository": {"full_name": "stranger/project", "owner": {"login": "stranger"}},
}


def pull(number: int, sha: str = SHA, repository: str = "stranger/project") -> dict[str, Any]:
    return {"number": number, "head": {"sha": sha, "ref": BRANCH, "repo": {"full_name": repository}}}


def archive(files: dict[str, str]) -> bytes:
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in files.items():
            target.writestr(name, text)
    return found.getvalue()


def damaged(compression: int) -> bytes:
    """Return an archive whose compressed bytes are overwritten, between the local header and the directory."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", compression) as target:
        target.writestr("comparison.md", bytes(range(256)) * 40)
    data = bytearray(found.getvalue())
    begin, end = 30 + len("comparison.md"), data.index(b"PK\x01\x02")
    begin += 9 if compression == zipfile.ZIP_LZMA else 0  # its header
    data[begin:end] = b"\xff" * (end - begin)
    return bytes(data)


class Service:
    """GitHub's API on the loopback interface: one run of one pull request, whose artifact is on another server."""

    def __init__(self) -> None:
        self.pulls = [pull(5)]
        self.comments: list[dict[str, Any]] = []
        self.archive = archive({"comparison.md": "### Benchmarks: no worse\n", "comparison.json": '{"number": 6}'})
        self.size: int | None = None
        self.requests: list[tuple[str, str]] = []
        self.written: list[str] = []
        self.tokens: dict[str, str | None] = {}
        self.status = 200

    def answer(self, method: str, path: str, body: Any) -> Any:
        """Return what GitHub answers: bytes, JSON, or the place to which it redirects."""
        self.requests.append((method, path))
        match path.partition("?")[0].removeprefix("/repos/team/project").split("/")[1:]:
            case ["pulls"]:
                return self.pulls
            case ["actions", "runs", "77", "artifacts"]:
                size = len(self.archive) if self.size is None else self.size
                about = {"name": "keras-matrix", "expired": False, "size_in_bytes": size}
                return {"artifacts": [about | {"id": 3}, about | {"id": 4}, about | {"id": 9, "expired": True}]}
            case ["actions", "artifacts", "4", "zip"]:
                return "redirect"
            case ["storage"]:
                return self.archive
            case ["issues", "5", "comments"] if method == "GET":
                page = int(path.rpartition("page=")[2])
                return self.comments[(page - 1) * 100 : page * 100]
            case ["issues", *_]:
                self.written.append(body["body"])
                return {}
        raise AssertionError(f"unexpected request: {method} {path}")


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    state = Service()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            state.tokens[self.path.partition("?")[0]] = self.headers.get("Authorization")
            found = state.answer(self.command, self.path, body)
            if found == "redirect":
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/storage")
                self.end_headers()
                return
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            self.respond()

        def do_PATCH(self) -> None:
            self.respond()

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield state, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def write(service: tuple[Service, str], folder: Path, **changes: Any) -> str:
    (folder / "event.json").write_text(json.dumps({"workflow_run": RUN | changes}))
    return comment.comment(
        {
            "ARTIFACT": "keras-matrix",
            "TOKEN": "secret",
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_API_URL": service[1],
            "GITHUB_REPOSITORY": "team/project",
        }
    )


def test_comment_is_written_on_the_pull_request_that_github_names(service: tuple[Service, str], tmp_path: Path) -> None:
    assert write(service, tmp_path) == "comment written on pull request 5"
    source = f"Measured by [a run]({RUN['html_url']}) of this pull request's own code, at {SHA}:"
    assert service[0].written == [f"{MARK}\n{source}\n\n### Benchmarks: no worse\n\n"]
    assert service[0].requests[0] == (
        "GET",
        "/repos/team/project/pulls?state=open&per_page=100&head=stranger%3Atopic%2Fa%26b%3Dc",
    )


def test_storage_that_github_redirects_to_does_not_get_the_token(service: tuple[Service, str], tmp_path: Path) -> None:
    write(service, tmp_path)
    without = {path for path, token in service[0].tokens.items() if token != "Bearer secret"}
    assert (without, service[0].tokens["/storage"]) == ({"/storage"}, None)


def test_earlier_comment_of_this_workflow_is_changed_and_that_of_a_person_is_not(
    service: tuple[Service, str], tmp_path: Path
) -> None:
    person, bot = {"login": "stranger"}, {"login": "github-actions[bot]"}
    other = [{"id": number, "user": bot, "body": "another"} for number in range(100)]
    service[0].comments = [
        {"id": 500, "user": person, "body": f"{MARK}\n"},
        {"id": 501, "user": None, "body": f"{MARK}\n"},
        {"id": 502, "user": bot},
        *other,
        {"id": 600, "user": bot, "body": f"{MARK}\nold"},
    ]
    assert write(service, tmp_path) == "comment changed on pull request 5"
    assert service[0].requests[-1] == ("PATCH", "/repos/team/project/issues/comments/600")


@pytest.mark.parametrize(
    "pulls",
    [[], [pull(5, sha="b" * 40)], [pull(5, repository="other/project")], [pull(5), pull(6)]],
    ids=["none", "moved on", "another repository", "several"],
)
def test_without_exactly_one_pull_request_of_the_measured_head_there_is_no_comment(
    service: tuple[Service, str], tmp_path: Path, pulls: list[dict[str, Any]]
) -> None:
    service[0].pulls = pulls
    expected = f"no comment: not one open pull request has the head {SHA[:12]}; it may have moved on"
    assert (write(service, tmp_path), service[0].written) == (expected, [])


@pytest.mark.parametrize("changes", [{"event": "push"}, {"head_repository": None}], ids=["push", "deleted fork"])
def test_run_of_no_pull_request_gets_no_comment(
    service: tuple[Service, str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert write(service, tmp_path, **changes) == "no comment: the run did not measure a pull request"
    assert service[0].requests == []


@pytest.mark.parametrize(
    ("content", "size", "message"),
    [
        (b"no archive", None, "artifact keras-matrix: no comparison.md can be read from it: File is not a zip file"),
        (archive({"other.md": "x"}), None, 'no comparison.md can be read from it: "There is no item named'),
        (damaged(zipfile.ZIP_DEFLATED), None, "no comparison.md can be read from it: Error -3 while decompressing"),
        (damaged(zipfile.ZIP_BZIP2), None, "no comparison.md can be read from it: Invalid data stream"),
        (damaged(zipfile.ZIP_LZMA), None, "no comparison.md can be read from it: "),
        (b"", 1 << 30, "artifact keras-matrix: 1,073,741,824 bytes, more than 16,777,216"),
        (bytes((16 << 20) + 1), 5, "/actions/artifacts/4/zip: more than 16,777,216 bytes"),
    ],
    ids=[
        "no archive",
        "no such file",
        "damaged deflate",
        "damaged bzip2",
        "damaged lzma",
        "large by its own account",
        "larger than it says",
    ],
)
def test_bad_artifact_is_refused(
    service: tuple[Service, str], tmp_path: Path, content: bytes, size: int | None, message: str
) -> None:
    service[0].archive, service[0].size = content, size
    with pytest.raises(Refused) as refused:
        write(service, tmp_path)
    assert message in str(refused.value)
    assert service[0].written == []


def test_archive_that_expands_to_gigabytes_is_read_up_to_the_limit(
    service: tuple[Service, str], tmp_path: Path
) -> None:
    service[0].archive = archive({"comparison.md": "a line\n" * 10_000_000})
    write(service, tmp_path)
    [text] = service[0].written
    assert comment.TEXT_LIMIT < len(text) < 65_536
    assert text.endswith("a line\n\n(shortened: the run's summary has all of it)\n")


def test_refusal_of_github_is_one_line_and_fails_the_step(
    service: tuple[Service, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service[0].status = 403
    (tmp_path / "event.json").write_text(json.dumps({"workflow_run": RUN}))
    for name, value in {
        "ARTIFACT": "keras-matrix",
        "TOKEN": "secret",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_API_URL": service[1],
        "GITHUB_REPOSITORY": "team/project",
    }.items():
        monkeypatch.setenv(name, value)
    assert comment.main() == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("::error title=Benchmarks::GET /pulls?")
    assert line.endswith("GitHub answers 403 Forbidden")


def test_other_event_is_refused(service: tuple[Service, str], tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text("{}")
    with pytest.raises(Refused, match="must be used in a workflow that workflow_run starts"):
        comment.comment({"ARTIFACT": "keras-matrix", "GITHUB_EVENT_PATH": str(tmp_path / "event.json")})


BREAK = "\u200b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@team, see #1, team/project#2 or GH-3", f"@{BREAK}team, see #{BREAK}1, team/project#{BREAK}2 or GH-{BREAK}3"),
        ("https://evil.example www.evil.example", f"https://{BREAK}evil.example www.{BREAK}evil.example"),
        ("[text](https://x)", f"&#91;text&#93;(https://{BREAK}x)"),
        (r"\\[text](x) \![image](x)", r"\\&#91;text&#93;(x) \!&#91;image&#93;(x)"),
        ("<img src=x> &lt;b> &#64;team &amp;lt;i>", f"&lt;img src=x> &lt;b> &amp;#{BREAK}64;team &amp;amp;lt;i>"),
        ("```mermaid\nx\n```\n~~~~\n$x$", "mermaid\nx\n\n\n&#36;x&#36;"),
        ("`~~~``mermaid", "mermaid"),
        ("~~```~~~``~mermaid", "mermaid"),
        ("`\u200b`\u200b`mermaid", "mermaid"),
        ("``a`` ~~b~~", None),
        ("a\u202eb\u200bc\x1b[31md\te", "abc&#91;31mde"),
        (f"@{BREAK}team", f"@{BREAK}team"),
        ("### Benchmarks: no worse\n\n| a\\|b | +1.0 % |\n| --- | --- |\n- c: `d`", None),
    ],
)
def test_text_of_the_artifact_loses_what_acts_and_keeps_its_tables(text: str, expected: str | None) -> None:
    assert harmless(text) == (text if expected is None else expected)


def test_a_real_comparison_is_unchanged() -> None:
    text = (Path(__file__).parents[2] / "runner" / "golden" / "gate.txt").read_text(encoding="utf-8")
    assert harmless(text) == text

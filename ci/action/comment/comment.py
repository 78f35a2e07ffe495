"""Write the comparison of a finished benchmark run into a comment on its pull request. Standard library only.

The run has executed the code of a pull request, perhaps of a stranger, and this script has a token that can write. So
it trusts nothing that the run has stored:

- Which pull request gets the comment follows from the event and GitHub's API alone: the open one whose head is the
  commit, branch and repository that the run measured. Nothing in the artifact is used for it.
- The artifact is read in memory, one file of it, up to a limit; nothing is extracted, nothing is executed.
- The Markdown keeps its tables and loses what acts: HTML, links, images, mentions, references to issues.

It changes one comment of its own instead of adding another. Without a pull request or an artifact it says so and ends
with 0; 1 if GitHub refuses or the artifact is no such archive.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "comparison.md"
ARTIFACT_LIMIT_BYTES = 16 << 20  # the page in it has a picture for each cell
ANSWER_LIMIT_BYTES = 16 << 20
TEXT_LIMIT = 60_000  # characters; GitHub refuses a comment of more than 65,536
TIMEOUT_S = 30
MOST_PAGES = 50
BOT = "github-actions[bot]"
BREAK = "\u200b"  # a space without width: what it divides is no mention, no reference and no address

# Characters that are invisible or turn the direction of the text; C0 except the line end.
INVISIBLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
# Mentions, addresses, references to issues: a break follows each of these.
ACTIVE = re.compile(r"@|://|[wW]\.|[gG][hH]-|#(?=\w)")
# Fences may draw diagrams and maps. Runs of both characters, so that no fence is left when a run is removed.
FENCE = re.compile(r"[`~]{3,}")
ENTITIES = {"[": "&#91;", "]": "&#93;", "<": "&lt;", "$": "&#36;"}  # not a backslash, which the text could escape


class Refused(Exception):
    """GitHub or the artifact does not allow a comment; the message says why."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The finished run, as GitHub's event describes it."""

    run_id: int
    url: str
    sha: str
    branch: str
    owner: str
    repository: str


class GitHub:
    """The REST API of one repository."""

    def __init__(self, url: str, repository: str, token: str) -> None:
        self._url = f"{url}/repos/{repository}"
        self._token = token

    def json(self, path: str, body: Mapping[str, Any] | None = None, method: str = "GET") -> Any:
        """Return the answer to a request."""
        data = json.dumps(body).encode() if body is not None else None
        try:
            return json.loads(self._answer(path, data, method, ANSWER_LIMIT_BYTES))
        except ValueError as error:
            raise Refused(f"{method} {path}: GitHub's answer is no JSON: {error}") from error

    def file(self, path: str, limit_bytes: int) -> bytes:
        """Return a file; the storage that GitHub redirects to does not get the token."""
        return self._answer(path, None, "GET", limit_bytes)

    def _answer(self, path: str, data: bytes | None, method: str, limit_bytes: int) -> bytes:
        request = urllib.request.Request(f"{self._url}{path}", data, method=method)
        request.add_header("Accept", "application/vnd.github+json")
        request.add_header("X-GitHub-Api-Version", "2022-11-28")
        request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                body: bytes = answer.read(limit_bytes + 1)
        except urllib.error.HTTPError as error:
            raise Refused(f"{method} {path}: GitHub answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{method} {path}: {error}") from error
        if len(body) > limit_bytes:
            raise Refused(f"{method} {path}: more than {limit_bytes:,} bytes")
        return body


def measured_run(event: Mapping[str, Any]) -> MeasuredRun | None:
    """Return the finished run; None if it did not measure a pull request whose repository still exists."""
    if (run := event.get("workflow_run")) is None:
        raise Refused("this action must be used in a workflow that workflow_run starts")
    head = run.get("head_repository")
    if run["event"] != "pull_request" or not head:
        return None
    return MeasuredRun(
        int(run["id"]), run["html_url"], run["head_sha"], run["head_branch"], head["owner"]["login"], head["full_name"]
    )


def pull_request(github: GitHub, run: MeasuredRun) -> int | None:
    """Return the number of the one open pull request of what was measured; None unless there is exactly one.

    The list of a commit's pull requests misses those of forks, and so does the event.
    """
    head = urllib.parse.quote(f"{run.owner}:{run.branch}", safe="")
    numbers = [
        int(pull["number"])
        for pull in github.json(f"/pulls?state=open&per_page=100&head={head}")
        if pull["head"]["sha"] == run.sha
        and pull["head"]["ref"] == run.branch
        and (pull["head"]["repo"] or {}).get("full_name") == run.repository
    ]
    return numbers[0] if len(numbers) == 1 else None


def markdown_of(github: GitHub, run_id: int, name: str) -> str | None:
    """Return the Markdown in the run's newest artifact of this name; None without one. Raises `Refused`."""
    query = urllib.parse.urlencode({"name": name, "per_page": 100})
    listed = github.json(f"/actions/runs/{run_id}/artifacts?{query}")["artifacts"]
    artifacts = [artifact for artifact in listed if artifact["name"] == name and not artifact["expired"]]
    if not artifacts:
        return None
    newest = max(artifacts, key=lambda artifact: int(artifact["id"]))
    if newest["size_in_bytes"] > ARTIFACT_LIMIT_BYTES:
        raise Refused(f"artifact {name}: {newest['size_in_bytes']:,} bytes, more than {ARTIFACT_LIMIT_BYTES:,}")
    archive = github.file(f"/actions/artifacts/{int(newest['id'])}/zip", ARTIFACT_LIMIT_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files, files.open(FILE) as file:
            text = file.read(4 * TEXT_LIMIT + 1)  # as many bytes as these characters have at most
    except Exception as error:  # zipfile passes on the errors of its decompressors
        raise Refused(f"artifact {name}: no {FILE} can be read from it: {error}") from error
    return text.decode(errors="replace")


def harmless(text: str) -> str:
    """Return Markdown in which tables, lists and emphasis still work, and nothing else does."""
    text = FENCE.sub("", INVISIBLE.sub("", text)).replace("&lt;", "<").replace("&", "&amp;")
    text = ACTIVE.sub(lambda match: match[0] + BREAK, text)
    for character, entity in ENTITIES.items():
        text = text.replace(character, entity)
    if len(text) > TEXT_LIMIT:
        text = f"{text[:TEXT_LIMIT].rpartition(chr(10))[0]}\n\n(shortened: the run's summary has all of it)"
    return text


def comments(github: GitHub, number: int) -> Iterator[Mapping[str, Any]]:
    """Yield the comments of a pull request."""
    for page in range(1, MOST_PAGES + 1):
        page_comments = github.json(f"/issues/{number}/comments?per_page=100&page={page}")
        yield from page_comments
        if len(page_comments) < 100:
            return


def publish(github: GitHub, number: int, mark: str, text: str) -> str:
    """Write the comment, over the earlier one of this mark; return what was done."""
    body = {"body": f"{mark}\n{text}"}
    for comment in comments(github, number):
        author = (comment.get("user") or {}).get("login")  # no user: the account was deleted
        if author == BOT and (comment.get("body") or "").startswith(mark):
            github.json(f"/issues/comments/{int(comment['id'])}", body, "PATCH")
            return "changed"
    github.json(f"/issues/{number}/comments", body, "POST")
    return "written"


def comment(environment: Mapping[str, str]) -> str:
    """Comment on the pull request of the event in the environment; return what was done. Raises `Refused`."""
    name = environment["ARTIFACT"]
    if not re.fullmatch(r"[\w.-]{1,100}", name):
        raise Refused(f"artifact: must be letters, digits, '.', '-' and '_', got {name!r}")
    event = json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_bytes())
    if (run := measured_run(event)) is None:
        return "no comment: the run did not measure a pull request"
    github = GitHub(environment["GITHUB_API_URL"], environment["GITHUB_REPOSITORY"], environment["TOKEN"])
    if (number := pull_request(github, run)) is None:
        return f"no comment: not one open pull request has the head {run.sha[:12]}; it may have moved on"
    if (text := markdown_of(github, run.run_id, name)) is None:
        return f"no comment: the run has no artifact {name}; it failed before it had a comparison"
    source = f"Measured by [a run]({run.url}) of this pull request's own code, at {run.sha}:"
    action = publish(github, number, f"<!-- {name} of keras-matrix -->", f"{source}\n\n{harmless(text)}\n")
    return f"comment {action} on pull request {number}"


def main() -> int:
    """Comment, and return the exit code."""
    try:
        print(comment(os.environ))
    except Refused as error:
        print(f"::error title=Benchmarks::{str(error).splitlines()[0]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

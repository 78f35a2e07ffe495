"""The command `runner dashboard`: its pages, addresses and limits."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from keras_matrix.dashboards.live.app import hosts, serve
from keras_matrix.dashboards.live.app.application import Application
from keras_matrix.dashboards.live.app.hosts import ListenAddress
from keras_matrix.dashboards.live.app.source import PageSource
from keras_matrix.dashboards.live.page import EMPTY, empty_notice
from keras_matrix.dashboards.report import site
from keras_matrix.runner.cli.main import main, parser
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.service import upload
from tests.dashboards.boards import stored, warehouse_of

ROOT = Path(__file__).parents[4]


def test_the_service_of_compose_listens_everywhere_and_answers_under_this_machines_names() -> None:
    command = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["dashboard"]["command"]
    args = parser().parse_args([re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in command])
    place = hosts.listen_address(args.listen, args.public)
    assert (place.host, place.port, args.source, args.since) == ("0.0.0.0", 8080, "local", None)
    assert [place.accepts(host) for host in ("localhost:9000", "127.0.0.1:8080", "[::1]:8080")] == [True] * 3
    assert not place.accepts("dashboard:8080")


@pytest.mark.parametrize(
    "flags",
    [
        ["--public", "a", "b", "--listen", "0.0.0.0:80"],
        ["--listen", "0.0.0.0:80", "--public", "a", "b"],
        ["--public", "a", "--from", "local", "--public", "b"],
    ],
)
def test_public_names_may_be_repeated_and_add_up(flags: list[str]) -> None:
    assert parser().parse_args(["dashboard", *flags]).public == ["a", "b"]
    assert parser().parse_args(["dashboard"]).public == []


@pytest.mark.parametrize("command", ["dashboard", "tensorboard"])
def test_server_listens_on_this_machine_alone_by_default(command: str) -> None:
    """Mutation: the default of `--listen` is 0.0.0.0:PORT."""
    host, _ = hosts.address(parser().parse_args([command]).listen)
    assert host == "127.0.0.1"


def test_emptied_warehouse_is_reported_with_the_repair_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = stored(tmp_path / "results", nights=1)
    warehouse_of(results).close()
    shutil.rmtree(results.root / "warehouse")
    pages: list[str] = []

    def look(source: PageSource, place: ListenAddress) -> None:
        [body] = Application(source)({"PATH_INFO": "/"}, lambda status, headers: pages.append(status))
        pages.append(body.decode())

    monkeypatch.setattr(serve, "serve", look)
    monkeypatch.setattr(upload, "send", lambda address, results: None)  # a push that does not notice
    assert main(["dashboard", "--results", str(results.root)], Seams()) == 0
    site.publish(tmp_path / "site", results.root, [])
    for page in (pages[1], (tmp_path / "site" / "index.html").read_text()):
        assert "Nothing was measured yet" not in page
        assert "This warehouse is empty, although" in page
        assert f"Send them again with `uploader push --repair --to local --results {results.root}`." in page


def test_unused_warehouse_has_no_repair_advice(tmp_path: Path) -> None:
    assert empty_notice("local", tmp_path) == EMPTY
    done = tmp_path / "outbox" / "local" / "done"
    done.mkdir(parents=True)
    (done / "cells-0.json").write_text("{")
    assert empty_notice("local", tmp_path).startswith(f"{EMPTY} The outbox cannot be read: {done / 'cells-0.json'}: ")

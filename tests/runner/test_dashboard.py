"""The command `runner dashboard`: what it serves, where, and with which limits."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dashboards.app import hosts
from runner.cli.main import parser

ROOT = Path(__file__).parents[2]


def test_the_service_of_compose_listens_everywhere_and_answers_under_this_machines_names() -> None:
    command = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["dashboard"]["command"]
    args = parser().parse_args([word.replace("${WAREHOUSE:-local}", "local") for word in command])
    place = hosts.place(args.listen, args.public)
    assert (place.host, place.port, args.source) == ("0.0.0.0", 8080, "local")
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
def test_public_names_stand_anywhere_and_add_up(flags: list[str]) -> None:
    assert parser().parse_args(["dashboard", *flags]).public == ["a", "b"]
    assert parser().parse_args(["dashboard"]).public == []

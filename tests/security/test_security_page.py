"""SECURITY.md states what compose.yaml and the tests show: its exceptions are the actual ones, its tests exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
NETWORKS = {None: "network of the project", "host": "network of the host"}


def exceptions(service: dict[str, Any]) -> Iterator[str]:
    """Yield what a service is permitted beyond the least, in the words of SECURITY.md."""
    mode = service.get("network_mode")
    if "cluster" in service.get("networks", ()):
        yield "network of the cluster"
    elif mode != "none":
        yield NETWORKS[mode]
    if service.get("user", "").startswith("0"):
        yield "starts as root"
    if (service.get("environment") or {}).get("KERAS_BENCHMARK_KEEP_ROOT"):
        yield "keeps root"
    if service.get("privileged"):
        yield "privileged"
    if service.get("secrets"):
        yield "token of the cluster"
    if service.get("deploy"):
        yield "GPUs"
    if "mem_limit" not in service or service["mem_limit"] != service.get("memswap_limit"):
        yield "no limit of memory"
    yield from _mounts(service)
    yield from (
        "port on 127.0.0.1" if str(one).startswith("127.0.0.1:") else f"port {one}" for one in service.get("ports", ())
    )


def _mounts(service: dict[str, Any]) -> Iterator[str]:
    for one in service["volumes"]:
        if isinstance(one, dict):
            yield (
                "credentials"
                if one["target"] in ("/credentials.json", "/credentials.pem") and one["read_only"]
                else f"volume {one}"
            )
        elif not one.startswith("./"):
            yield "volume of its own"
        elif not (one.endswith(":ro") or one == "./results:/work/results"):
            yield f"volume {one}"


def listed() -> dict[str, set[str]]:
    """Return the exceptions of SECURITY.md, each with its services."""
    table = PAGE.partition("## Exceptions in compose.yaml")[2]
    found = {}
    for name, services in re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", table, flags=re.M)[1:]:
        names = set(re.findall(r"`([\w-]+)`", services))
        found[name] = set(SERVICES) - names if services.startswith("all but ") else names
    return found


def test_exceptions_of_the_services_are_those_listed_with_a_reason() -> None:
    """Mutation: `privileged: true`, a port, or `network_mode: host` for one more service."""
    actual: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for exception in exceptions(service):
            actual.setdefault(exception, set()).add(name)
    assert listed() == actual


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_drops_what_it_does_not_need(name: str) -> None:
    """Mutation: a service without `read_only: true`."""
    service = SERVICES[name]
    assert (service["read_only"], service["init"], service["cap_drop"]) == (True, True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] == 4096
    assert service["tmpfs"] == ["/tmp:rw,nosuid,nodev,size=1g"]
    extra = {"CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"} if service.get("user") == "0:0" else set()
    assert set(service.get("cap_add", ())) == extra


def test_every_promise_names_tests_that_exist() -> None:
    """Mutation: a wrong name of a test in the page."""
    rows = PAGE.partition("## What protects")[2].partition("\n## ")[0].splitlines()
    shown = [re.findall(r"`(tests/[\w/]+\.py)`", row.rpartition(" | ")[2]) for row in rows if row.startswith("| ")][1:]
    assert len(shown) > 7
    assert all(shown)
    assert [path for paths in shown for path in paths if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/containers.md", "docs/tasks.md"])
def test_pages_that_concern_security_link_to_it(page: str) -> None:
    """Mutation: a page without the link."""
    assert re.search(r"\]\((\.\./)?SECURITY\.md(#[\w-]+)?\)", (ROOT / page).read_text(encoding="utf-8"))

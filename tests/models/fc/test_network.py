"""What a worker process does in its network: the address that it has, the name of its host, meeting the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.models.fc import network
from keras_matrix.models.fc.network import NoSuchNetwork, NotMet


def test_address_of_an_interface_is_read_from_the_kernel() -> None:
    assert network.address_of("lo") == "127.0.0.1"


def test_missing_interface_is_reported_with_its_name_and_advice() -> None:
    with pytest.raises(NoSuchNetwork, match=r"^interface no-such-link: has no IPv4 address: .*; start the runner in"):
        network.address_of("no-such-link")


def test_refused_host_name_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(answer: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(network, "CLONE_NEWUTS", 0)  # asks for no new namespace
    monkeypatch.setattr(network, "_checked", refuse)
    with pytest.raises(NoSuchNetwork, match=r"^host name here: cannot be set: Operation not permitted; run as root$"):
        network.name_host("here")


def test_each_worker_gets_the_messages_of_all_by_rank(tmp_path: Path) -> None:
    meeting = str(tmp_path / "meeting")
    (tmp_path / "meeting.0").write_text("first")
    (tmp_path / "meeting.2").write_text("third")
    assert network.met(meeting, 1, 3, "second", timeout_s=60.0) == ["first", "second", "third"]


def test_workers_that_do_not_come_are_named(tmp_path: Path) -> None:
    (tmp_path / "meeting.2").write_text("third")
    with pytest.raises(NotMet, match=r"^the 4 workers did not all connect within -1 s; missing: 0, 3$"):
        network.met(str(tmp_path / "meeting"), 1, 4, "second", timeout_s=-1.0)


def test_free_port_can_be_bound_again() -> None:
    port = network.free_port("127.0.0.1")
    assert 1024 <= port <= 65535

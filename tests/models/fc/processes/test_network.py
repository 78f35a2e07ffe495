"""What a worker process does in its network: the address that it has, the name of its host."""

from __future__ import annotations

import pytest

from keras_matrix.models.fc import meeting
from keras_matrix.models.fc.meeting import NoSuchNetwork


def test_address_of_an_interface_is_read_from_the_kernel() -> None:
    assert meeting.address_of("lo") == "127.0.0.1"


def test_missing_interface_is_reported_with_its_name_and_advice() -> None:
    with pytest.raises(NoSuchNetwork, match=r"^interface no-such-link: has no IPv4 address: .*; start the runner in"):
        meeting.address_of("no-such-link")


def test_refused_host_name_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(answer: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(meeting, "CLONE_NEWUTS", 0)  # asks for no new namespace
    monkeypatch.setattr(meeting, "_checked", refuse)
    with pytest.raises(NoSuchNetwork, match=r"^host name here: cannot be set: Operation not permitted; run as root$"):
        meeting.name_host("here")


def test_interface_of_an_address_is_found_and_a_foreign_address_is_reported() -> None:
    assert meeting.interface_of("127.0.0.1") == "lo"
    with pytest.raises(NoSuchNetwork, match=r"^address 192\.0\.2\.7: no interface \(.*lo.*\) has it; start the node"):
        meeting.interface_of("192.0.2.7")


def test_free_port_can_be_bound_again() -> None:
    port = meeting.free_port("127.0.0.1")
    assert 1024 <= port <= 65535

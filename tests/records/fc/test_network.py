"""Network namespaces as named by `ci/netns`, and whether they suffice."""

from __future__ import annotations

import pytest

from keras_matrix.records.fc.network import Network, network_problem, parse


def test_the_variable_names_the_rate_and_the_namespaces() -> None:
    assert parse("200mbit kbm-net-7-0 kbm-net-7-1") == Network("200mbit", ("kbm-net-7-0", "kbm-net-7-1"))


def test_empty_variable_means_no_network() -> None:
    assert parse("") is None


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "network: no namespaces with links of 200mbit exist; start the runner in: ci/netns 2 --rate"),
        (Network("1gbit", ("a", "b")), "network: the links have a rate of 1gbit, not 200mbit; start the runner in:"),
        (Network("200mbit", ("a",)), "network: 1 namespaces exist for 2 workers; start the runner in: ci/netns 2"),
    ],
)
def test_insufficient_namespaces_are_reported(found: Network | None, message: str) -> None:
    assert (network_problem(found, "200mbit", 2) or "").startswith(message)


def test_sufficient_namespaces_have_no_problem() -> None:
    assert network_problem(Network("200mbit", ("a", "b", "c")), "200mbit", 2) is None

"""Where notifications may go, and who is named in them."""

from __future__ import annotations

import pytest

from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.notify.places import API_VARIABLE, GitHub, owner_of, owners_of, place_of


def test_token_is_not_sent_without_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: `place_of` checks the address of a webhook alone."""
    monkeypatch.setenv(API_VARIABLE, "http://github.example/api/v3")
    with pytest.raises(UsageError, match="GITHUB_API_URL: must begin with https://, got http:// and the host github"):
        place_of("github:a/b")
    monkeypatch.setenv(API_VARIABLE, "https://github.example/api/v3/")
    assert place_of("github:a/b") == GitHub("a/b", "https://github.example/api/v3")


@pytest.mark.parametrize(
    ("workload", "backend", "owner"),
    [("lstm", "jax", "@octo/rnn"), ("bert", "jax", "@jane"), ("bert", "torch", "@all")],
)
def test_last_owner_whose_pattern_names_a_cell_is_its_owner(workload: str, backend: str, owner: str) -> None:
    """Mutation: the first one is."""
    owners = owners_of(["@all", "jax:*=@jane", "lstm=@octo/rnn"])
    assert owner_of(owners, workload, backend) == owner

"""Addresses in messages and records contain no user and no password."""

from __future__ import annotations

import pytest

from keras_matrix.records.host.inherited_environment import has_user, without_user


@pytest.mark.fault("F40", mutation="USER matches only addresses with a scheme")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@proxy:3128", "http://proxy:3128"),
        ("http://user:se/cr@et@proxy:3128", "http://proxy:3128"),
        ("https://token@github.com/me/project.git", "https://github.com/me/project.git"),
        ("user:secret@proxy:3128", "proxy:3128"),
        ("--address=ray://user:secret@head:10001", "--address=ray://head:10001"),
        ("no cluster at tcp://a:b@c:1: refused", "no cluster at tcp://c:1: refused"),
    ],
)
def test_user_and_password_are_removed(text: str, shown: str) -> None:
    assert (has_user(text), without_user(text)) == (True, shown)


@pytest.mark.parametrize(
    "text", ["http://proxy:3128", "/usr/bin:/bin", "me@example.org", "en_GB@euro", "--filter=workload=a", ""]
)
def test_other_texts_are_unchanged(text: str) -> None:
    assert (has_user(text), without_user(text)) == (False, text)

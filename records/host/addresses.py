"""Addresses without the user and the password that they may contain, for messages and records."""

from __future__ import annotations

import re

# `http://user:password@proxy:3128`, `https://token@host/repository`, and without a scheme `user:password@proxy`.
# A password may contain a slash or an @.
USER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)\S*@|[^/\s:@=]+:\S*@")


def has_user(text: str) -> bool:
    """Return whether a text contains an address with a user."""
    return USER.search(text) is not None


def without_user(text: str) -> str:
    """Return a text whose addresses name no user."""
    return USER.sub(lambda found: found["scheme"] or "", text)

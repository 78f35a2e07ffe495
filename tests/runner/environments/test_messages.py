"""Ends of a search that are refused: versions of a package and days, each with its complete message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from keras_matrix.runner.environments.dated import Listed, between, day, locks_between
from keras_matrix.runner.errors import UsageError
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.runner.environments.test_dated import TODAY, lock
from tests.runner.environments.test_package_versions import VERSIONS

BUILDS = ["2.12.0+cpu", "2.13.0+cpu", "2.14.0+cpu", "2.14.0+cu128"]
ENDS: Mapping[str, tuple[str, list[str], str, str]] = {
    "the same version": ("keras", VERSIONS, "3.13.0", "3.13"),
    "versions in the wrong order": ("keras", VERSIONS, "3.14.0", "3.13.0"),
    "a word": ("keras", VERSIONS, "latest", "3.13.0"),
    "a version that there is not": ("keras", VERSIONS, "3.13.0", "3.14.1"),
    "a pre-release that there is not": ("keras", VERSIONS, "3.13.0", "4.0.dev1"),
    "a pre-release without --pre": ("keras", ["3.13.0", "3.14.0"], "3.13.0", "3.14.1.dev1"),
    "a version of two builds": ("torch", BUILDS, "2.12.0", "2.14.0"),
}
DAYS: Mapping[str, tuple[str, str]] = {
    "a day of another form": ("1.5.2026", "2026-06-01"),
    "a day after today": ("2026-11-02", "2026-12-01"),
    "the same day": ("2026-05-01", "2026-05-01"),
    "days in the wrong order": ("2026-06-01", "2026-05-01"),
    "days with the same lock": ("2026-05-01", "2026-05-05"),
}


def locks_of(good: str, bad: str) -> object:
    first: date = day("--good", good, TODAY)
    return locks_between(first, day("--bad", bad, TODAY), lock)


def test_every_wrong_pair_of_ends_has_its_message(golden: Golden) -> None:
    """Mutation: `_known` asks for the exact text of a version, which a notification does not have."""
    messages = {
        title: refusal(UsageError, lambda ends=ends: between(ends[0], Listed(ends[1]), *ends[2:]))  # type: ignore[misc]
        for title, ends in ENDS.items()
    }
    for title, ends in DAYS.items():
        messages[title] = refusal(UsageError, lambda ends=ends: locks_of(*ends))  # type: ignore[misc]
    check_messages(golden, "ends.txt", messages)

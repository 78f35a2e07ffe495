"""The marks of a picture, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from keras_matrix.dashboards.charts.picture import Area, Mark, MarkGroup, Picture, Segment, Word

Kind = TypeVar("Kind")


def drawn(picture: Picture, kind: type[Kind], *roles: str) -> list[Kind]:
    """Return the marks of a kind, those of axes and groups too; of some roles only if they are given."""
    return [mark for mark in _every(picture) if isinstance(mark, kind) and (not roles or _role(mark) in roles)]


def _every(picture: Picture) -> Iterator[Mark]:
    for mark in (*picture.axes, *picture.marks):
        yield mark
        if isinstance(mark, MarkGroup):
            yield from mark.marks


def _role(mark: object) -> str:
    return mark.role if isinstance(mark, Area | Segment | Word) else ""

"""What goes wrong with the store: a module of its own, since every command handles it and few open the store."""

from __future__ import annotations


class StoreFailure(Exception):
    """A file of the store cannot be read or written. The message says which file, why, and what to do."""


class StoreInUse(StoreFailure):
    """Another runner has locked the results folder."""

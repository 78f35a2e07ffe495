"""Copies the DuckDB extensions that are installed as packages to $HOME/.duckdb, where DuckDB finds them."""

from __future__ import annotations

from importlib.metadata import distributions

from duckdb_extensions import import_extension

PREFIX = "duckdb-extension-"

for one in distributions():
    name = one.metadata["Name"].replace("_", "-")
    if name.startswith(PREFIX):
        import_extension(name.removeprefix(PREFIX))

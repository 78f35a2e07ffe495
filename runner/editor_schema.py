"""The grammar as a JSON Schema, for editors: completion, meanings on hover, red lines.

`python -m runner.editor_schema > matrix.schema.json` makes the file that is checked in. The schema knows every key,
value and range, and which parameters each workload takes. It does not know the rules between two settings, duplicates
or spellings (`4.0` is an integer to it): the last word is the reader's.
"""

from __future__ import annotations

import json
from typing import Any

from records.settings import BACKENDS
from runner import catalog as catalogs
from runner.catalog import Catalog, Workload
from runner.grammar import (
    DEFAULTS,
    ENTRY_KEYS,
    LIMITS,
    NAME,
    SETTINGS,
    TOP_KEYS,
    USER_PARAM,
    USER_WORKLOAD,
    VERSION,
)

Schema = dict[str, Any]


def json_schema(catalog: Catalog) -> Schema:
    """Return the schema (draft 7, which editors know best) of a matrix file."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Benchmark matrix",
        "description": "What to measure: every entry of cells makes the product of its axes times its backends.",
        **_mapping(
            {
                "version": {"const": VERSION, "description": "version of the grammar"},
                "defaults": _mapping({key: _one(key) for key in DEFAULTS}),
                "backends": {"$ref": "#/definitions/backends"},
                "cells": {"type": "array", "minItems": 1, "items": _entry(catalog)},
            }
        ),
        "required": [key for key in TOP_KEYS if key != "defaults"],
        "definitions": _definitions(),
    }


def text(catalog: Catalog) -> str:
    """Return the schema as the text of `matrix.schema.json`."""
    return json.dumps(json_schema(catalog), indent=1, allow_nan=False) + "\n"


def _definitions() -> Schema:
    backends = {"type": "array", "items": {"enum": list(BACKENDS)}, "minItems": 1, "uniqueItems": True}
    axes = {f"{key}_axis": _axis(_one(key)) for key in SETTINGS}
    return {"backends": backends, **{key: rule.json_schema() for key, rule in DEFAULTS.items()}, **axes}


def _entry(catalog: Catalog) -> Schema:
    names = {"enum": list(catalog.workloads)}
    users = {"type": "string", "pattern": f"^{USER_WORKLOAD.pattern}$"}
    branches = [_branch({"const": name}, _params(workload), workload) for name, workload in catalog.workloads.items()]
    branches.append(_branch({"type": "string", "pattern": ":"}, _users_params(), None))
    settings = {key: {"$ref": f"#/definitions/{key}_axis"} for key in SETTINGS}
    return {
        "type": "object",
        "required": ["workload"],
        "properties": {
            "workload": {"anyOf": [names, users], "description": "a name of the catalog, or package.module:function"},
            "backends": {"$ref": "#/definitions/backends"},
            **settings,
            **{key: _one(key) for key in LIMITS},
        },
        "allOf": branches,
    }


def _branch(name: Schema, params: Schema, workload: Workload | None) -> Schema:
    """Return what an entry must be when its workload has this name: its keys, its parameters, its data."""
    direct = params.get("properties", {})
    own = direct | ({"data": _axis({"enum": list(workload.data)})} if workload else {})
    settings = {key: {"$ref": f"#/definitions/{key}_axis"} for key in SETTINGS}
    limits = {key: _one(key) for key in LIMITS}
    again = _mapping({**settings, **limits, **own, "params": params, "backends": {"$ref": "#/definitions/backends"}})
    left_out = {"backend": _axis({"enum": list(BACKENDS)}), **settings, **own}
    exclude = {"type": "object", "minProperties": 1, "properties": left_out}
    if workload:
        exclude["additionalProperties"] = False
    return {
        "if": {"properties": {"workload": name}, "required": ["workload"]},
        "then": {
            "properties": {
                **own,
                "params": params,
                "include": {"type": "array", "minItems": 1, "items": again},
                "exclude": {"type": "array", "minItems": 1, "items": exclude},
            },
            "propertyNames": {"enum": [*ENTRY_KEYS, *DEFAULTS, *direct]},
        },
    }


def _params(workload: Workload) -> Schema:
    return _mapping({name: _axis(rule.json_schema()) for name, rule in workload.params.items()})


def _users_params() -> Schema:
    names = {"pattern": f"^{NAME.pattern}$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": _axis(USER_PARAM.json_schema())}


def _mapping(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _one(key: str) -> Schema:
    return {"$ref": f"#/definitions/{key}"}


def _axis(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}]}


if __name__ == "__main__":
    print(text(catalogs.load()), end="")

"""The grammar as a JSON Schema for editors: completion, descriptions on hover, marked errors.

`python -m keras_matrix.runner.matrix.json_schema > matrix.schema.json` writes the file that is checked in. The schema
contains every key, value and range, and the parameters of each workload. It does not express rules between two
settings, duplicates or spellings (it accepts `4.0` as an integer): the reader decides.

An installed package may bring workloads, whose names the file that is checked in cannot know: it accepts every name.
`runner schema` accepts those of the packages that are installed where it runs, and an editor completes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.parts import KIND_OF_PART
from keras_matrix.runner.matrix import catalog as catalogs
from keras_matrix.runner.matrix import grammar, instrument_keys, parts
from keras_matrix.runner.matrix.catalog import Catalog, CatalogWorkload
from keras_matrix.runner.matrix.grammar import DEFAULTS, LIMITS, SETTINGS, USER_PARAM, VERSION
from keras_matrix.runner.matrix.task_rules import MAX_WORD, MAX_WORDS, METRIC, SHARED, SWITCHES
from keras_matrix.runner.matrix.task_rules import NAME as TASK_NAME

Schema = dict[str, Any]


# The workloads of single parts under their short names, whose arguments are under `params`, as a user's own.
_PARTS = tuple(replace(parts.part_workload(kind), name=kind) for kind in KIND_OF_PART.values())


def json_schema(catalog: Catalog, brought: Collection[str] | None = None) -> Schema:
    """Return the schema (draft 7, which editors know best) of a matrix file.

    `brought` are the names of the workloads of packages; None accepts every name.
    """
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Benchmark matrix",
        "description": "What to measure: every entry of cells is multiplied out over its axes and backends.",
        **_mapping(
            {
                "version": {"const": VERSION, "description": "version of the grammar"},
                "defaults": _mapping({key: _one(key) for key in (*DEFAULTS, instrument_keys.TRACE)}),
                "backends": _one("backends"),
                "cells": _list(_entry(catalog, brought)),
                "tasks": _list(_task()),
                "python": _environments(),
                **{key: rule.json_schema() for key, rule in grammar.FILE_RULES.items()},
            }
        ),
        "required": ["version"],
        "anyOf": [{"required": ["backends", "cells"]}, {"required": ["tasks"]}],
        "definitions": _definitions(catalog),
    }


def text(catalog: Catalog) -> str:
    """Return the schema as the text of `matrix.schema.json`."""
    return json.dumps(json_schema(catalog), indent=1, allow_nan=False) + "\n"


def _definitions(catalog: Catalog) -> Schema:
    """Return the shared definitions. Draft 7 cannot close an object composed of parts, so names are listed."""
    axes = {f"{key}_axis": _axis(_one(key)) for key in SETTINGS}
    settings = {key: _one(f"{key}_axis") for key in SETTINGS}
    limits = {key: _one(key) for key in (*LIMITS, instrument_keys.TRACE, instrument_keys.STALLS)}
    again_properties = {**settings, **limits, "backends": _one("backends")}
    left_out = {**settings, "backend": _axis({"enum": list(BACKENDS)})}
    return {
        "backends": {"type": "array", "items": {"enum": list(BACKENDS)}, "minItems": 1, "uniqueItems": True},
        **{key: rule.json_schema() for key, rule in DEFAULTS.items()},
        instrument_keys.TRACE: instrument_keys.json_schema(),
        instrument_keys.STALLS: instrument_keys.RULE.json_schema(),
        **axes,
        "again": {"type": "object", "properties": again_properties},
        "again_name": {"enum": ["params", *again_properties]},
        "left_out": {"type": "object", "properties": left_out, "minProperties": 1},
        "left_out_name": {"enum": list(left_out)},
        "entry_name": {"enum": [*grammar.ENTRY_KEYS, instrument_keys.TRACE, instrument_keys.STALLS, *DEFAULTS]},
        "users.params": _users_params(),
        **{
            key: definition
            for workload in (*catalog.workloads.values(), *_PARTS)
            for key, definition in _own_definitions(workload).items()
        },
    }


def _environments() -> Schema:
    path: Schema = {"type": "string", "minLength": 1}
    by_backend: Schema = {"type": "object", "propertyNames": {"enum": list(BACKENDS)}, "additionalProperties": path}
    meaning = "the virtual environment of the cells, or its Python; or one for each backend, by its name"
    return {"anyOf": [path, by_backend], "description": meaning}


def _task() -> Schema:
    """Return the schema of an entry of `tasks`; references in its words are checked by the reader alone."""
    word: Schema = {"type": "string", "maxLength": MAX_WORD}
    words: Schema = {"type": "array", "items": word, "maxItems": MAX_WORDS}
    pattern: Schema = {"type": "string", "description": "regular expression with one group around the number"}
    metric = _mapping({"pattern": pattern, **{key: rule.json_schema() for key, rule in METRIC.items()}})
    keys: Schema = {
        "task": {"type": "string", "pattern": f"^{TASK_NAME.pattern}$", "description": "its name"},
        "command": {"anyOf": [words, word], "description": "its words; a single text with shell: true"},
        "params": _users_params(),
        "backends": _one("backends"),
        "metrics": {"type": "object", "additionalProperties": {"anyOf": [pattern, metric]}},
        "environment": {"type": "object", "additionalProperties": word},
        "inherit": {"anyOf": [{"const": "all"}, words], "description": "variables inherited from the caller"},
        "wrap": {**words, "description": "a tool and its arguments, put before the command"},
        **{key: rule.json_schema() for key, rule in SWITCHES.items()},
        **{key: _one(key) for key in SHARED},
    }
    return {**_mapping(keys), "required": ["task", "command"]}


def _entry(catalog: Catalog, brought: Collection[str] | None) -> Schema:
    built_in = [*catalog.workloads, *parts.NAMED]
    names: list[Schema] = [{"enum": [*built_in, *(brought or ())]}]
    if brought is None:
        names.append({"type": "string", "pattern": f"^{grammar.NAME.pattern}$", "description": "of a package"})
    users = {"type": "string", "pattern": f"^{grammar.USER_WORKLOAD.pattern}$"}
    branches = [_branch({"const": name}, workload) for name, workload in catalog.workloads.items()]
    branches += [_branch({"enum": [part.name, f"keras:{part.name}"]}, part) for part in _PARTS]
    branches.append(_branch({"type": "string", "not": {"enum": built_in}}, None))
    meaning = "a workload of the catalog or of an installed package, package.module:function, or a program"
    word: Schema = {"type": ["string", "number"]}
    program = _mapping(
        {
            "script": {"type": "string", "pattern": f"^{grammar.SCRIPT_PATH.pattern}$", "description": "its path"},
            "args": {"type": "array", "items": word, "description": "the words of its arguments"},
            "call": {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": 999_999_999},
                    {"type": "string", "pattern": f"^({grammar.CALL.pattern})$"},
                ],
                "description": "the number or kind of the measured call",
            },
            **{key: rule.json_schema() for key, rule in grammar.PROGRAM_KEYS.items()},
        }
    )
    branches.append(_branch({"type": "object"}, None))
    return {
        "type": "object",
        "required": ["workload"],
        "properties": {
            "workload": {"anyOf": [*names, users, {**program, "required": ["script"]}], "description": meaning}
        },
        "allOf": [_one("again"), *branches],
    }


def _branch(name: Schema, workload: CatalogWorkload | None) -> Schema:
    """Return the schema of an entry whose workload has this name: its keys, parameters and data."""
    stem = workload.name if workload else "users"
    direct = {param: _one(f"{stem}.{param}_axis") for param in workload.params} if workload else {}
    own_keys = direct | ({"data": _one(f"{stem}.data_axis")} if workload else {})
    params = {"params": _one(f"{stem}.params")}
    again_point = _point("again", own_keys | params, direct)
    # A user's own parameter may have any name.
    left_out = _point("left_out", own_keys, direct) if workload else _one("left_out")
    properties = {**own_keys, **params, "include": _list(again_point), "exclude": _list(left_out)}
    return {
        "if": {"properties": {"workload": name}, "required": ["workload"]},
        "then": {"properties": properties, "propertyNames": _names("entry", direct)},
    }


def _own_definitions(workload: CatalogWorkload) -> Schema:
    """Return the definitions of one workload; a dot in the name distinguishes them from shared ones."""
    stem = workload.name
    definitions = {f"{stem}.{param}": rule.json_schema() for param, rule in workload.params.items()}
    definitions |= {f"{stem}.{param}_axis": _axis(_one(f"{stem}.{param}")) for param in workload.params}
    definitions[f"{stem}.data_axis"] = _axis({"enum": list(workload.data)})
    if workload in _PARTS:
        return {**definitions, f"{stem}.params": _users_params()}
    return definitions | {
        f"{stem}.params": _mapping({param: _one(f"{stem}.{param}_axis") for param in workload.params})
    }


def _point(shared_name: str, own_keys: Schema, direct: Schema) -> Schema:
    return {"allOf": [_one(shared_name)], "properties": own_keys, "propertyNames": _names(shared_name, direct)}


def _names(shared_name: str, direct: Schema) -> Schema:
    """Return a schema of the allowed keys: the shared ones, and the workload's parameters."""
    return {"anyOf": [_one(f"{shared_name}_name"), {"enum": list(direct)}]} if direct else _one(f"{shared_name}_name")


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def _users_params() -> Schema:
    names = {"pattern": f"^{grammar.NAME.pattern}$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": _axis(USER_PARAM.json_schema())}


def _mapping(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _one(key: str) -> Schema:
    return {"$ref": f"#/definitions/{key}"}


def _axis(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1, "uniqueItems": True}]}


if __name__ == "__main__":
    print(text(catalogs.load()), end="")

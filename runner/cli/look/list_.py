"""List the workloads with their shapes, parameter count and forward FLOPs, or the parameters of one."""

from __future__ import annotations

import argparse
import json

from keras_matrix.records.parts import KIND_OF_PART
from keras_matrix.records.text import count, near, printable
from keras_matrix.runner.cli.render.format import columns
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix import catalog, parts
from keras_matrix.runner.matrix.catalog import Catalog


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("workload", nargs="?", help="show this workload with its parameters; layer, op: those of Keras")
    parser.add_argument("--json", action="store_true", help="print the catalog itself")


def run(args: argparse.Namespace) -> int:
    """Print the catalog."""
    if args.json:
        print(json.dumps(json.loads(catalog.CATALOG_PATH.read_text(encoding="utf-8")), indent=1))
        return 0
    workload_catalog = catalog.load()
    print("\n".join(_one(workload_catalog, args.workload) if args.workload else _all(workload_catalog)))
    return 0


def _all(workload_catalog: Catalog) -> list[str]:
    rows = [["workload", "batch", "input", "output", "parameters", "FLOPs/sample", "what it is"]]
    for w in workload_catalog.workloads.values():
        numbers = [count(w.parameters), count(w.forward_flops_per_sample)]
        rows.append([w.name, str(w.batch_size), _shape(w.input_shape), _shape(w.output_shape), *numbers, w.summary])
    brought = catalog.of_packages(workload_catalog.workloads)
    lines = [_brought(package_workload) for package_workload in brought]
    single = f"\n{', '.join(KIND_OF_PART.values())}: single layers and operations of Keras; runner list layer"
    return [
        *columns(rows, right=frozenset({1, 4, 5})),
        single,
        *(["", "of installed packages:"] if lines else []),
        *lines,
    ]


def _brought(workload: catalog.PackageWorkload) -> str:
    if workload.problem:
        return printable(f"  refused: {workload.problem}")
    return printable(f"  {workload.name}: {workload.function}, of {workload.package}")


def _one(workload_catalog: Catalog, name: str) -> list[str]:
    workload = workload_catalog.workloads.get(name)
    brought = {} if workload else {item.name: item for item in catalog.of_packages(workload_catalog.workloads)}
    if name in brought:
        return [_brought(brought[name])]
    if name in parts.NAMED:
        return columns([[name, "input", "arguments, or why it is not measured"], *map(list, parts.rows(_kind(name)))])
    names = [*workload_catalog.workloads, *KIND_OF_PART.values()]
    if workload is None:
        raise UsageError(f"workload: must be one of {', '.join(names)}, got {name!r}{near(name, [*names, *brought])}")
    lines = [
        f"{workload.name}: {workload.summary}",
        f"  batch size {workload.batch_size}, samples {workload.samples}, data {', '.join(workload.data)}",
        f"  input {_shape(workload.input_shape)}, output {_shape(workload.output_shape)}",
        f"  {count(workload.parameters)} parameters, {count(workload.forward_flops_per_sample)} forward FLOPs a sample",
        f"  {workload.optimizer}, {workload.loss}",
    ]
    lines += [
        f"  {key}: {rule.words()}, default {rule.default}  ({rule.meaning})" for key, rule in workload.params.items()
    ]
    lines += [f"  corrected: {text}" for text in workload.corrections]
    return lines


def _kind(name: str) -> str:
    return KIND_OF_PART[parts.NAMED[name]]


def _shape(shape: object) -> str:
    """Return a shape as `224x224x3`; several inputs as a sum."""
    if not isinstance(shape, list):
        return "-"
    if shape and isinstance(shape[0], list):
        return " + ".join(_shape(part) for part in shape)
    return "x".join(map(str, shape)) or "scalar"

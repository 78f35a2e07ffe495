"""Print the JSON Schema of matrix files, for editors: `# yaml-language-server: $schema=matrix.schema.json`.

It has the workloads of the catalog and those of the packages that are installed here."""

from __future__ import annotations

import argparse
import json

from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.json_schema import json_schema


def configure(parser: argparse.ArgumentParser) -> None:
    """This command has no flags."""


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    workloads = catalog.load()
    print(json.dumps(json_schema(workloads, catalog.names_of_packages(workloads)), indent=2))
    return 0

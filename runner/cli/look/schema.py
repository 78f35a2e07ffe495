"""Print the JSON Schema of matrix files, for editors: `# yaml-language-server: $schema=matrix.schema.json`."""

from __future__ import annotations

import argparse
import json

from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.json_schema import json_schema


def configure(parser: argparse.ArgumentParser) -> None:
    """This command has no flags."""


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    print(json.dumps(json_schema(catalog.load()), indent=2))
    return 0

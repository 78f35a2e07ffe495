"""TensorBoard's protobuf messages and the writer of its files, from tensorboardX.

`import tensorboardX` imports PyTorch if that is installed: 3 s, and a backend in the runner's process. The parts that
are used need only protobuf, so they are loaded below a package whose own `__init__` has not run.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

PACKAGE = "tensorboardX"


if PACKAGE not in sys.modules:  # register it without running it
    if (found := PathFinder.find_spec(PACKAGE)) is None:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed: pip install tensorboardx", name=PACKAGE)
    sys.modules[PACKAGE] = module_from_spec(found)

Event = import_module(f"{PACKAGE}.proto.event_pb2").Event
GraphDef = import_module(f"{PACKAGE}.proto.graph_pb2").GraphDef
NodeDef = import_module(f"{PACKAGE}.proto.node_def_pb2").NodeDef
Summary = import_module(f"{PACKAGE}.proto.summary_pb2").Summary
RecordWriter = import_module(f"{PACKAGE}.record_writer").RecordWriter

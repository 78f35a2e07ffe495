"""Trace graphs from JAX's and TensorFlow's own files, `*.xplane.pb`.

graph.py         the graph of the files of all ranks: collectives, common steps, runs of operations as one
reading.py       a file: its steps, the operations of each device in them, the program's own thread
serial.py        a device's operations, which overlap on its thread pool, as one sequence that takes the same time
rank.py          the pieces of a rank: operations in a common order, launches, fetches, collectives
programs.py      what XLA's programs say of an operation: shape, bytes, FLOPs, what it depends on
inferred.py      dependencies that follow only from the times, where a file has no program
"""

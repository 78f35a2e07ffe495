"""Trace graphs from JAX's and TensorFlow's own files, `*.xplane.pb`.

reading.py  a file: its steps, the operations of each device in them, the program's own thread
rank.py     the pieces of a rank: operations in a common order, launches, collectives; what XLA's programs say of them
chain.py    the times of a lane's operations, one after the other, and dependencies that no file states
graph.py    the graph of the files of all ranks: collectives, common steps, runs of operations as one
"""

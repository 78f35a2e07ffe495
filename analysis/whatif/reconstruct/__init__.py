"""Builds trace graphs from profilers' files.

kineto/      from PyTorch's files (Kineto), one per rank, to a graph
xplane/      from JAX's and TensorFlow's files
pieces.py    what happened on a lane in one step, before steps are matched, and the clocks of ranks
nodes.py     the same operation in all steps as one node
coverage.py  which share of the steps a graph explains
"""

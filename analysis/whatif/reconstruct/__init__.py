"""Builds trace graphs from profilers' files.

files.py     one file per rank, of any supported format, to a graph
kineto/      from PyTorch's files (Kineto)
xplane/      from JAX's and TensorFlow's files
pieces.py    what happened on a lane in one step, before steps are matched
ranks.py     files that are of one rank
matching.py  the same operation in successive steps
clocks.py    aligns the clocks of ranks
coverage.py  which share of the steps a graph explains
"""

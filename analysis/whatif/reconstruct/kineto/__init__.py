"""Trace graphs from Kineto files: those of torch.profiler, and Chrome traces with the same events from anybody.

reading.py      a file's events by thread and stream
shapes.py       bytes, floating-point operations and dtype of an operator's inputs
host.py         the pieces of work of a thread in a step
device.py       kernels and copies of a device's streams, and what they wait for
collectives.py  collectives of a rank: their launch, their group, their gradients
rank.py         one file: all pieces of a rank, what they depend on and wait for
graph.py        all ranks together
"""

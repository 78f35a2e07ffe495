"""Trace graphs from Kineto files: those of torch.profiler, and Chrome traces with the same events from anybody.

reading.py  a file's events by thread and stream
host.py     the pieces of work of a thread in a step
device.py   kernels and copies of a device's streams, what they wait for, and a rank's collectives
rank.py     one file: all pieces of a rank, what they depend on and wait for
graph.py    all ranks together
"""

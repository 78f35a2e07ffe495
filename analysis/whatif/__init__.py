"""Predicts a training step from a trace of it, under this and other settings, and judges predictions by measurements.

graph.py        the trace graph: operations of a steady step with their measured durations and dependencies
engine.py       simulation of a graph: serial lanes, collectives, shared cores and links, and its timeline
program.py      the graph as lists of integers
corrections.py  a graph without the profiler's cost, of the mean process, with a fitted link
replay.py       a steady step from three replayed ones: percentiles, critical path, shares, durations without contention
collectives.py  how long a collective takes: ring all-reduce with alpha and beta, or a table of measured sizes
reconstruct/    makes graphs from profilers' files
what_ifs/       functions from graph to graph, each paired with the setting that realises it
search.py       looks for faster settings in replay
trajectory.py   what a search tried
cost_model.py   learns durations of operations that no trace has;  cost_operations.py: its samples
verify.py       compares predictions with interleaved measurements
"""

"""Predicts a training step from a trace of it, under this and other settings, and judges predictions by measurements.

graph.py        the trace graph: operations of a steady step with their measured durations and dependencies
engine.py       simulation of a graph: serial lanes, collectives;  program.py: the graph as lists of integers
sharing.py      its event queue: shared cores and links, lanes that run several operations at a time
contention.py   durations without contention, from those that were measured with it
overhead.py     durations without the profiler's cost, by the step time without it
replay.py       a steady step from three replayed ones, its percentiles, critical path and shares
collectives.py  how long a collective takes: ring all-reduce with alpha and beta, or a table of measured sizes
timeline.py     a replayed timeline as spans of the neutral trace
reconstruct/    makes graphs from profilers' files
what_ifs/       functions from graph to graph, each paired with the setting that realises it
search/         looks for faster settings in replay
cost/           learns durations of operations that no trace has
verify.py       compares predictions with interleaved measurements
recalibration.py fits a link to measured step times
"""

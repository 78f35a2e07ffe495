"""The host side of what-if: finds the files of a trace, stores trace graphs, and measures what was predicted.

source.py          the trace graph of a cell, of profilers' files or of a stored graph
stored_graph.py    a trace graph as Parquet files, one per rank
links.py           the calibration of the link between workers
prediction.py      what what-ifs predict
measurement.py     the cells that verify predictions
strategy_file.py   cells as a matrix file
"""

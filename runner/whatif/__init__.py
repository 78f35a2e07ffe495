"""The host side of what-if: finds the files of a trace, stores trace graphs, and measures what was predicted.

source.py          the trace graph of a cell, of profilers' files or of a stored graph, and the link's calibration
probes.py          how much faster fused or bfloat16 layers are, measured
cost_data.py       what a cost model is learned from, and a model's file
cost_regressor.py  learns its regression trees with scikit-learn
prediction.py      what what-ifs predict
picture.py         a replayed step under the measured one, as an SVG file
measurement.py     the cells that verify predictions
strategy_file.py   cells as a matrix file
"""

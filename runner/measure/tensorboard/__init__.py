"""Files for TensorBoard, written by the runner after a cell's process has ended: scalars, the graph, a profile.

The cell writes its layers and its profile to its scratch folder after the measurement; the other data are in its
record. Therefore this package cannot affect the figures, and an image needs only its backend.
"""

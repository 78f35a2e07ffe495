"""Files for TensorBoard, written by the runner after a cell's process has ended: scalars, the graph, a profile.

The cell leaves its layers and its profile in its scratch folder, after everything measured; all else comes from its
record. So nothing here can touch what was measured, and no image needs more than its backend.
"""

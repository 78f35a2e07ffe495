"""Cells that Keras does not train or generate by itself: their timed loop, and the check that they do as Keras does."""

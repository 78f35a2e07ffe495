"""Cells whose training steps are not those of `fit`: their timed loop, and the check that they train as Keras does."""

"""How long an operation takes that no trace has: learned by kind of operation from traces that exist. Pure.

kinds.py       the kind of an operation, from its name
operations.py  samples from graphs: work, device and measured time of distinct operations
roofline.py    time from a device's peaks, and a kind's overhead and efficiency
trees.py       boosted regression trees as plain numbers
errors.py      errors of operations that were held out, and what a kind is predicted with
training.py    learns a model; the caller supplies the regressor
model.py       the model, its file and its predictions
"""

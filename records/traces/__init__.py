"""Traces: what a profiler saw of a few steps, in one form whatever backend ran them. Standard library only.

    asked.py      what is asked for, what became of it, and the names of the marks a traced cell leaves
    neutral.py    the neutral trace: a Chrome trace with one vocabulary of tracks, phases, layers and flows
    names.py      from a backend's names of operations to phase and layer, for XLA and TensorFlow; of kernels, to kinds
    kineto.py     reads PyTorch's own file, piece by piece;  torch.py makes the neutral trace of it
    wire.py       reads protocol buffers;  xplane.py: JAX's and TensorFlow's own file;  hlo.py: XLA's programs in it
    launches.py   which step launched what ran on a device, for XLA and TensorFlow
    xla.py        makes the neutral trace of these
    native.py     from any backend's files to one neutral trace, the workers' clocks aligned

Every file is read once, as a stream; of an event a few numbers are kept, so that memory stays below that of the file.
"""

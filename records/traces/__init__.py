"""Traces: the profile of a few steps in one format for all backends.

    request.py      what to trace, the result, and the names of the marks of a traced cell
    neutral.py      the neutral trace: a Chrome trace with one vocabulary of tracks, phases, layers and flows, and how
                    it follows from a backend's names of operations and kernels
    kineto.py       reads PyTorch's own file as a stream;  torch.py converts it
    xspace/         reads JAX's and TensorFlow's own file and converts it
    conversion.py   converts any backend's files to one neutral trace with aligned clocks of the workers
    table.py        the summary of a trace;  programs.py: counts of the operations that ran in a step

Every file is read once; of an event a few numbers are stored, so that memory stays below the size of the file.
"""

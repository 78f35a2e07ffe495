"""Input pipelines: decoders, batch loading, and the sources that `fit` accepts.

Imports only NumPy and the standard library until a pipeline is built: worker processes import these modules.
"""

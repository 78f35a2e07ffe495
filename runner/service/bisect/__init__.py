"""The use cases of the runner, each a function of values; the command line and the Python API call them."""

"""Reads this machine: identity, processes, GPUs, surroundings. One reader per fact."""

"""Keras workloads on several devices of one machine: the rules, the record's part, and the proof of equal work."""

"""The surroundings of the cells: a machine's state, disturbed blocks, the smallest detectable difference."""

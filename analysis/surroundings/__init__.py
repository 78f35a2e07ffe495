"""What surrounds the cells, judged: the state of a machine, the blocks it disturbed, the difference it lets one see."""

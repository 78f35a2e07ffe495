"""Reading what surrounds the cells: the machine's state, its counters, and how alike it lets two identical arms be."""

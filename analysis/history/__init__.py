"""Many sessions of one cell: their values and change points. Pure."""

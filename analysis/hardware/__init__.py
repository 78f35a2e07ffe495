"""How much of the hardware a cell uses. Pure."""

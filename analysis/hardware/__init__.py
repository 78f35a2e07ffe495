"""How much of the hardware a cell uses: peaks, FLOPs, roofline. Pure."""

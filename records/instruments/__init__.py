"""Results of instruments: peaks, usage, work and parity."""

"""What instruments measured: peaks, usage, work and parity."""

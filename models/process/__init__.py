"""Settings of the measured process."""

"""The commands `replay` and `optimize`: predict a training step from its trace, search for faster settings, verify."""

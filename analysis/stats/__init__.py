"""Statistics of epochs, processes, blocks and sessions. Pure."""

"""One module per target; its `TARGET` is found by the name of the module."""

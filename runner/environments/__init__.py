"""Python environments that the runner makes, for cells with other versions than its own."""

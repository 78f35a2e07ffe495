"""What each backend brings to the FC modes: its workers' collectives and gradients, and how a step is built and run."""

"""What a record says of the host: CPUs, environment, and errors of its memory."""

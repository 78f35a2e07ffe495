"""How it is measured: matrix, plan, executors, cells, records; and the command line."""

"""The commands that write data sets for input pipelines."""

"""How data sets are written: worker processes, signals and exit codes, and verified record files."""

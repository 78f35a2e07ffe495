"""A first hour on a device: checks whether figures measured on it can be trusted, and reports the results.

`checks` lists the checks, `measured` runs the cells that they read, `report` writes the results. `ci/first_hour` does
the same for a BigQuery dataset.
"""

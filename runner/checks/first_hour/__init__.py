"""A first hour on a device: checks that the figures measured on it can be trusted, and one report of them.

`checks` lists what is checked, `measured` runs the cells that the checks read, `report` writes what was found.
`ci/first_hour` has the same for a BigQuery dataset.
"""

"""The kinds of differences. Each is a module with `claims`, and a row of `registry.KINDS`.

`claims(pair, rows)` takes those rows of a pair that it explains, in groups; the next kind gets the others.
"""

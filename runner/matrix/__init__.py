"""From a matrix file to checked cells: strict YAML, grammar, expansion, overrides. Pure."""

"""Pages: the report of a run, the live dashboard and the published site."""

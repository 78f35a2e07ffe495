"""The live dashboard: a small WSGI application that asks a warehouse, local or BigQuery, at every look."""

"""The live dashboard: a small WSGI application that reads a warehouse, the local one or a snapshot of BigQuery."""

"""The BigQuery warehouse."""

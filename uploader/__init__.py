"""Uploads records as rows, exactly once, to Parquet files next to the results or to BigQuery."""

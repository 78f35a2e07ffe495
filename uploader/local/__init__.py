"""The local warehouse: Parquet files and DuckDB."""

"""Where it goes: records as rows, in Parquet files beside the results or in BigQuery, exactly once."""

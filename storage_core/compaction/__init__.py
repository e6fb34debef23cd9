"""Compaction: small Parquet files of a destination become few large ones, with the same rows."""

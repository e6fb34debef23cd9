"""Growing logs, published as blobs (Flink: log files in the BLOB store)."""

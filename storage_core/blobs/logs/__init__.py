"""Growing task logs, kept as blobs."""

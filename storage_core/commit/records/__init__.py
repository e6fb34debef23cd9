"""The records that one process writes for another to read (S3A: `commit/files`)."""

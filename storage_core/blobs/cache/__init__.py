"""Cache of blobs on a worker's machine, shared by its processes (Flink: PermanentBlobCache)."""

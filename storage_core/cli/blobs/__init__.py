"""`lockgate blobs` and `lockgate blob-server`."""

"""What the API and the pages tell: read from the registry, the stores, the blobs and the journal."""

"""What the API and the pages show, read from the registry, the stores, the blobs and the journal."""

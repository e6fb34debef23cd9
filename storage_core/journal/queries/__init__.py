"""Questions about jobs and blobs."""

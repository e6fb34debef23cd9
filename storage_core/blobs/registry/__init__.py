"""The registry of blobs: entries, rows and queries that the journal keeps for the blob server."""

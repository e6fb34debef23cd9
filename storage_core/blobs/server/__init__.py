"""Receive, record and serve blobs; keep upload sets."""

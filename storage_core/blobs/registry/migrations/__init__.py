"""Alembic steps of the family `blobs`, one file a version."""

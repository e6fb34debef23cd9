"""Alembic steps of the family `jobs`, one file a version."""

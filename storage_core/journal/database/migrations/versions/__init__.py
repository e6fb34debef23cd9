"""Alembic steps of the family `journal`, one file a version."""

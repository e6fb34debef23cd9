"""Alembic: from every earlier version of the tables to the newest, a branch a family, a file a version."""

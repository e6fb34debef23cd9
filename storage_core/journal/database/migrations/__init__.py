"""Alembic migrations: each family has its own branch."""

"""The way from every earlier version of the tables to the newest: a file a step, run by Alembic."""

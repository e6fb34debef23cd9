"""SQLite and PostgreSQL: schema, statements, errors."""

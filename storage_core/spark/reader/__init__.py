"""Read live files as rows."""

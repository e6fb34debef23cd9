"""A job's Python code and jars."""

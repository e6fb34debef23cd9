"""Migrations of the family `files`."""

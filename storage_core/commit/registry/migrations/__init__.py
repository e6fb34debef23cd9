"""Migrations of the family `jobs`, one file for each version."""

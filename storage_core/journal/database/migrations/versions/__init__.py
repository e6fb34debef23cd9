"""Migrations of the family `journal`, one file for each version."""

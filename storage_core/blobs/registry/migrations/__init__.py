"""Migrations of the family `blobs`, one file for each version."""

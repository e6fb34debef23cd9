"""Stores of blobs' bytes: local disk and HA store."""

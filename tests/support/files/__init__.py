"""Journals and volumes with files, whose disks, stores and calls fail when a test says so."""

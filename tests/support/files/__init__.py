"""Volumes and a journal in memory, for tests of files that need faults at exact points."""

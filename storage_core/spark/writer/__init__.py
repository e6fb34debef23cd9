"""Write rows to pending files."""

"""Write rows to pending files, in batch and streaming writes."""

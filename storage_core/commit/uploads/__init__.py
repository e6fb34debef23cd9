"""One pending upload: written, completed, owned, counted."""

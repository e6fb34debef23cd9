"""Read one consistent state, and remember what was seen of it."""

"""Read one consistent state, and remember the stamps seen."""

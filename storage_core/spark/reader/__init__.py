"""Read live files into rows."""

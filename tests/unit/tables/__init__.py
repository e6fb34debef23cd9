"""Tables of a destination."""

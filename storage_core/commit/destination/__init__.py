"""State of a destination: its log, live files, conflict modes and path conflicts."""

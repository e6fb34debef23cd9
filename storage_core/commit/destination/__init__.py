"""What a destination holds already: its log, live files, modes, conflicts."""

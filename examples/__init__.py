"""Programs that show Lockgate at work; not installed with it."""

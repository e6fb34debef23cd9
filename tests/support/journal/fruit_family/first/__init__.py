"""The migrations of the first version."""

"""The migrations up to the second version."""

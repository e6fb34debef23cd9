"""Benchmarks of Lockgate against alternatives. Each prints a table; none asserts a time."""

"""What is measured, against what. Each prints a table; none asserts a time."""

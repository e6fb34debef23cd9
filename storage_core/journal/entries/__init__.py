"""Entries: what they say, how they fold into rows, and the families that they come in. Knows no SQL."""

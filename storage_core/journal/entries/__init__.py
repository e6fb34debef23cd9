"""Entries, the rows that they fold into, and their families, without SQL."""

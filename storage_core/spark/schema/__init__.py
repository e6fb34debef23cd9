"""Columns, their types and the Hive layout of partitions."""

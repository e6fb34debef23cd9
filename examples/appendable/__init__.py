"""What may be built on appendable files: a handler of `logging`, and a write-ahead log."""

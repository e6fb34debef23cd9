"""Appendable files: one writer appends, many readers follow, and recovery agrees on one length."""

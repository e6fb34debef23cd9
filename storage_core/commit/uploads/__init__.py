"""Pending uploads: writing, completion, ownership and cost."""

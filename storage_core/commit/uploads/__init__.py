"""Pending uploads: written, completed, owned."""

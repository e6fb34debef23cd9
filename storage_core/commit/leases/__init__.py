"""Leases: which driver of a job acts now."""

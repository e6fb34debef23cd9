"""Leases on jobs: which driver acts for a job now."""

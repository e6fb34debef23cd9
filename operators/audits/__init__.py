"""Audit staged rows with Great Expectations, before the job commits."""

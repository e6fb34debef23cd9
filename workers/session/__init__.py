"""Carry the journal's session token in Celery messages."""

"""Airflow connections: credentials of S3, and where the journal, the broker and the blob server are."""

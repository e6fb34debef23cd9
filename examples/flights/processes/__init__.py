"""Processes that the demo starts: Airflow, a Celery worker, and their children."""

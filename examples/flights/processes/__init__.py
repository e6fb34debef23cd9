"""The processes that the demo starts: Airflow, a Celery worker, their children."""

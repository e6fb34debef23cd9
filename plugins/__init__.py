"""The Airflow plugin: it has no pages yet."""

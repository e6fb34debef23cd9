"""The Airflow plugin, which has no pages yet."""

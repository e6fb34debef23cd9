"""The Airflow plugin."""

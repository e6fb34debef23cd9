"""Run Spark in a child process of the Airflow task."""

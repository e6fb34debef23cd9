"""The DAGs that Airflow schedules: one file a DAG, no logic."""

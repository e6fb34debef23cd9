"""Lockgate inside Airflow: where its pages appear, who may see them, and which DAG carries an action out."""

"""The pages about jobs and their JSON API, in Airflow and on their own.

Airflow finds the plugin through the entry point `airflow.plugins` of the installed package.
"""

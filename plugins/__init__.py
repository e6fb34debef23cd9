"""The Airflow plugin; it has no pages yet.

Airflow finds it through the entry point `airflow.plugins` of the installed package.
"""

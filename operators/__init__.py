"""Airflow operators over `storage_core` and `workers`: thin, light to import, safe to retry."""

"""The pages and the JSON API, as one FastAPI application that knows no Airflow."""

"""A Spark session in a child process that ends with the Airflow task."""

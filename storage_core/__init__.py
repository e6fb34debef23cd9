"""Everything that is true without Airflow or Celery: stores, journal, commit, blobs, Spark, fsspec, CLI."""

"""Everything that is true without Airflow or Celery: stores, journal, commit, blobs, Spark, fsspec, CLI."""

from typing import Final

VERSION: Final = "0.1.0"
"""Version of the package, written here so that no process searches the metadata of its packages for it."""

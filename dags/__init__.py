"""Lockgate's DAGs, one file each: `lockgate dags path`, `lockgate dags install DIR`."""

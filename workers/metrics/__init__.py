"""Metrics of a worker and its pool, for Prometheus."""

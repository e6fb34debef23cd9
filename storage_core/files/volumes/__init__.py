"""Volumes: where the replicas of blocks live."""

"""Snapshot, replay, verify, prune and restore a journal (HDFS: fsimage)."""

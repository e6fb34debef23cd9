"""Decide who may do what with which job's blobs."""

"""Blobs: immutable artefacts of jobs, kept while a reference exists, and deleted in two stages.

The rows and entries of blobs, upload sets and references are in `registry`. Source: Flink BLOB storage.
"""

"""Frequent requests to S3, sent by AWS's C library (AWS CRT)."""

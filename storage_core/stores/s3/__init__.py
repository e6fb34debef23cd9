"""Store objects in S3 and in servers that speak its protocol."""

"""Lockgate beside its peers at one S3 server: Spark, the S3A committers, bare AWS CRT and boto3."""

"""Send frequent S3 calls from templates, with less CPU than botocore needs."""

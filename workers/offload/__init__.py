"""Send large task arguments and results as blobs (pattern: Claim Check)."""

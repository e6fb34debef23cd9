"""Where a blob's bytes lie: local disk and HA store."""

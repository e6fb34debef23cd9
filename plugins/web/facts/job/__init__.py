"""Facts about one job, from its records and the registry."""

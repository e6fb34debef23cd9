"""Who drives a job now, and what the registry of jobs learns."""

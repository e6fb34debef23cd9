"""The registry of jobs: entries, rows and queries that the journal keeps for the commit protocol."""

"""Before anything is written: the job's identity, and what the store can do."""

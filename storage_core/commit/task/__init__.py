"""A task writes and commits: from attempt to pending set."""

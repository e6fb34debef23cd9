"""The session token in task messages and results, so that reads never go back in time."""

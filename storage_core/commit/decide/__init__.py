"""Steps before `COMMIT_STARTED`: select attempts, take the turn, freeze the plan, decide."""

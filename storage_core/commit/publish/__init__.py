"""Everything after COMMIT_STARTED: complete uploads, publish, finalize, or roll back."""

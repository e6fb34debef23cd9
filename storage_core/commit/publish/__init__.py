"""Steps after `COMMIT_STARTED`: complete the uploads, publish, finalize, or roll back."""

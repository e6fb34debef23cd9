"""Access to the blobs of a job: the policy, bearer tokens and their file."""

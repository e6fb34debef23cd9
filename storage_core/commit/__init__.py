"""The commit protocol: jobs, task attempts, the job commit, recovery and the sweep of orphaned uploads."""

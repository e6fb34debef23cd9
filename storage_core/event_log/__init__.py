"""The event log of a job: appendable files that its processes write, and readers that merge them."""

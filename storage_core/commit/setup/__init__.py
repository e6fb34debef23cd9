"""Job set-up: create the job's identity and probe the store's capabilities."""

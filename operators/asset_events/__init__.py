"""Asset events of jobs: what a commit task has still to emit, and who emits it if that task was killed."""

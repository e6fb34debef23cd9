"""Pass a job from task to task of a DAG run: handle, receipt, progress, retries."""

"""Values that a DAG run passes from task to task, and how its tasks fail."""

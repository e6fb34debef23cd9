"""What the form of a DAG may name, so that triggering a DAG does not give the rights of its worker."""

"""`lockgate jobs`."""

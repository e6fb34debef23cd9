"""`lockgate journal`."""

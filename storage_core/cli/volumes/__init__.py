"""`lockgate volumes`."""

"""Tables: each turn of a destination's log as a version of a Delta or an Iceberg table."""

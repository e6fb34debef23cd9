"""After a crash: finish jobs, abort them, sweep what they left."""

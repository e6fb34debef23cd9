"""Recovery after a crash: finish or abort jobs, and delete what they left."""

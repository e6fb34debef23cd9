"""Records of the destination's log: turn claims, outcomes, live files and checkpoints."""

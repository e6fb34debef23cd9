"""The replicas of blocks: compared with the journal, reported, copied, moved, deleted."""

"""Model-based tests of the journal: any callers in any order, on both databases."""

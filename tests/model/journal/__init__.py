"""The journal against a small model of it: any order of any callers, on both databases."""

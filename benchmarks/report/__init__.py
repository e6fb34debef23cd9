"""Writes `docs/benchmarks.md` and its charts from the results in `benchmarks/results`."""

"""`python -m examples.flights`: the main job, end to end, on real data, with a crash in the middle."""

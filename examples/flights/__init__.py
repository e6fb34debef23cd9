"""The demo, `python -m examples.flights`: the main job on real data, with a crash in the middle."""

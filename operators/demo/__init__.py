"""`python -m lockgate.operators.demo`: the main job, end to end, on real data, with a crash in the middle."""

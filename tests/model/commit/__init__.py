"""The commit protocol as a small explicit-state model that is explored completely.

Read it in this order: `state` (the store and the memory of each process), `rules` (the rules that a process
follows and a test can drop), `committing` and `forward` (its steps, one storage call each), `faults`
(crashes and accidents), `moves`, `invariants`, `exploration`, `configurations`. The results are in
`docs/internals/testing.md`.
"""

"""The commit protocol as a small explicit-state model, explored to its last state.

Read it in this order: `state` (what lies in the store, what a process has in hand), `rules` (what a process
holds to, and a test can drop), `committing` and `forward` (what it does, one storage call a step), `faults`
(what happens to it), `moves`, `invariants`, `exploration`, `worlds`. The results are in
`docs/internals/protocol-model.md`.
"""

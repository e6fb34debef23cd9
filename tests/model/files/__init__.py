"""The reseal of a block as an explicit-state model: each order of journal entries, volume calls and faults.

`pytest tests/model/files -s` explores the worlds of the tests; `python -m tests.model.files` prints the
figures and traces of `docs/internals/files.md`.
"""

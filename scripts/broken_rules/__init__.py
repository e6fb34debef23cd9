"""The mutants of `mutants.py`, by what they break."""

from __future__ import annotations

from typing import Final

from scripts.broken_rules import blob_bytes, blob_folds, commit, files, leases, pages, verification, writes
from scripts.broken_rules.mutant import Edit, Mutant

__all__ = ["MUTANTS", "Edit", "Mutant"]

MUTANTS: Final[tuple[Mutant, ...]] = (
    *writes.MUTANTS,
    *leases.MUTANTS,
    *blob_folds.MUTANTS,
    *blob_bytes.MUTANTS,
    *commit.MUTANTS,
    *verification.MUTANTS,
    *pages.MUTANTS,
    *files.MUTANTS,
)

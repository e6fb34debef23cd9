"""A mutant: a rule, the edits that break it, and the tests that must fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JOURNAL: Final = "storage_core/journal"
BLOB_REGISTRY: Final = "storage_core/blobs/registry"
MODEL: Final = "tests/model/journal/test_journal_properties.py::test_a_journal_behaves_like_its_model"


@dataclass(frozen=True)
class Edit:
    """One replacement in one file.

    Attributes:
        path: Path below the tree.
        old: Text that occurs there exactly once.
    """

    path: str
    old: str
    new: str

    def apply(self, tree: Path) -> None:
        """Replace the old text by the new.

        Raises:
            ValueError: The old text does not occur exactly once.
        """
        file = tree / self.path
        text = file.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path}: {text.count(self.old)} occurrences, not one: {self.old!r}")
        file.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Mutant:
    """A broken rule.

    Attributes:
        breaks: The rule.
        tests: Tests of which one must fail.
    """

    name: str
    breaks: str
    edits: Sequence[Edit]
    tests: str = f"{MODEL}[sqlite]"

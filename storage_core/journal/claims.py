"""Claims: names that are created if absent at a store which cannot do so itself. One claim a name wins."""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.storage_core.journal.entries.claims import ClaimName, ReleaseName
from lockgate.storage_core.journal.entries.rows import Claim
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.write.mutation import Mutation
from lockgate.storage_core.journal.write.transaction import refusals


class Claims:
    """The names that a journal holds for one store.

    Args:
        journal: Decides.
        store: URL of the place whose names they are.
    """

    def __init__(self, journal: Journal, store: str) -> None:
        self.journal = journal
        self.store = store

    def take(self, name: str, body: str) -> None:
        """Claim a name for what is to stand there; the claim is durable when this returns.

        Args:
            name: Relative to the store.
            body: What anybody needs to write the object in the claimant's place.

        Raises:
            AlreadyExistsError: It is claimed.
            JournalUnavailableError: It was not claimed.
            OutcomeUnknownError: No answer; `find` tells.
        """
        self.journal.apply(ClaimName(store=self.store, name=name, body=body))

    def find(self, name: str) -> str | None:
        """Return the body that a name is claimed for, None if it is free."""
        with self.journal.reading() as reading:
            claim = reading.get(Claim, self.store, name)
        return None if claim is None else claim.body

    def names(self) -> list[str]:
        """Return all names that are claimed."""
        with self.journal.reading() as reading:
            return [claim.name for claim in reading.where(Claim, {"store": self.store})]

    def release(self, names: Sequence[str]) -> int:
        """Forget those of these names that are claimed; returns how many were.

        A name that somebody else has released and claimed meanwhile stays claimed.

        Raises:
            JournalUnavailableError: None was forgotten.
        """
        with self.journal.reading() as reading:
            claimed = reading.find(Claim, [(self.store, name) for name in names])
        if claimed:
            outcomes = self.journal.write([Mutation(op=ReleaseName.of(claim)) for claim in claimed])
            for refused in refusals(outcomes):
                raise refused
        return len(claimed)

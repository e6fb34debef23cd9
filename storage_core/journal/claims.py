"""Claim: a name that is created once in the journal, for a store that has no conditional create.

In other stores a claim, such as that of a turn, is an object that is created if absent.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockgate.storage_core.journal.entries.claims import ClaimName, ReleaseName
from lockgate.storage_core.journal.entries.rows import Claim
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.write.mutation import Mutation, Refused


class Claims:
    """The claimed names of one store.

    Args:
        journal: The journal that keeps the claims.
        store: URL of the store.
    """

    def __init__(self, journal: Journal, store: str) -> None:
        self.journal = journal
        self.store = store

    def take(self, name: str, body: str) -> None:
        """Claim a name. The claim is durable when this returns.

        Args:
            name: Relative to the store.
            body: Content with which any process can write the object for the claimant.

        Raises:
            AlreadyExistsError: The name is claimed already.
            JournalUnavailableError: It was not claimed.
            OutcomeUnknownError: No answer; `find` returns whether it is claimed.
        """
        self.journal.apply(ClaimName(store=self.store, name=name, body=body))

    def find(self, name: str) -> str | None:
        """Return the body of a name's claim, None if the name is free."""
        with self.journal.reading() as reading:
            claim = reading.get(Claim, self.store, name)
        return None if claim is None else claim.body

    def names(self) -> list[str]:
        """Return all claimed names."""
        with self.journal.reading() as reading:
            return [claim.name for claim in reading.where(Claim, {"store": self.store})]

    def release(self, names: Sequence[str]) -> int:
        """Release names and return how many were claimed.

        A name that another process has released and claimed in the meantime stays claimed.

        Raises:
            JournalUnavailableError: None was released.
        """
        with self.journal.reading() as reading:
            claimed = reading.find(Claim, [(self.store, name) for name in names])
        if claimed:
            outcomes = self.journal.write([Mutation(op=ReleaseName.of(claim)) for claim in claimed])
            for outcome in outcomes:
                if isinstance(outcome, Refused):
                    raise outcome.error
        return len(claimed)

"""Claim: a name that is created once in the journal, for a store that has no conditional create.

In other stores a claim, such as that of a turn, is an object that is created if absent. Its row and entries
are in `entries/claim_entries.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockgate.storage_core.journal.entries.claim_entries import Claim, ClaimName, ReleaseName
from lockgate.storage_core.journal.journal import Journal
from lockgate.storage_core.journal.write.mutation import Mutation, Refused
from lockgate.storage_core.stores.protocol import in_pages

PAGE: Final = 1_000
"""Names that are released in one transaction."""


class Claims:
    """The claimed names of one store."""

    def __init__(self, journal: Journal, store: str) -> None:
        self.journal = journal
        self.store = store

    def take(self, name: str, body: str) -> None:
        """Claim a name. The claim is durable when this returns.

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
        """Release names and return how many were claimed, a page of them in each transaction.

        A name that another process has released and claimed in the meantime stays claimed.

        Raises:
            JournalUnavailableError: The pages before are released; repeat the call for the others.
        """
        released = 0
        for page in in_pages(names, PAGE):
            with self.journal.reading() as reading:
                claimed = reading.find(Claim, [(self.store, name) for name in page])
            if claimed:
                outcomes = self.journal.write([Mutation(op=ReleaseName.of(claim)) for claim in claimed])
                for outcome in outcomes:
                    if isinstance(outcome, Refused):
                        raise outcome.error
            released += len(claimed)
        return released

"""Claimed names of a store that has no conditional create, and the entries that claim and release them.

Source: commit protocol, "Job commit": the journal named in `job.json` is the arbiter.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import ClassVar, Self

from lockgate.storage_core.errors import AlreadyExistsError
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Row, State


class Claim(Row, frozen=True):
    """A claimed name of a store that has no conditional create.

    Attributes:
        store: URL of the store.
        body: Content of the object, in base 64.
    """

    TABLE: ClassVar = "claim"
    KEY: ClassVar = ("store", "name")

    store: str
    name: str
    body: str
    claimed_s: float


class ClaimName(Op, frozen=True, tag="claim-name"):
    """Claim a name.

    Attributes:
        body: Content of the object, in base 64.
    """

    store: str
    name: str
    body: str

    def touches(self) -> Iterable[Key]:
        return [(Claim, (self.store, self.name))]

    def fold(self, state: State, moment: Moment) -> None:
        """Insert the claim if the name is free."""
        if state.get(Claim, self.store, self.name) is not None:
            raise AlreadyExistsError(f"{self.store}/{self.name}: the journal holds this name for another")
        state.put(Claim(store=self.store, name=self.name, body=self.body, claimed_s=moment.at_s))


class ReleaseName(Op, frozen=True, tag="release-name"):
    """Release a name whose object was deleted.

    Attributes:
        body_sha256: Digest of the released claim's body, in hex: a later claim of the same name stays.
    """

    store: str
    name: str
    body_sha256: str

    @classmethod
    def of(cls, claim: Claim) -> Self:
        """Return the entry that releases exactly this claim."""
        return cls(store=claim.store, name=claim.name, body_sha256=_sha256(claim.body))

    def touches(self) -> Iterable[Key]:
        return [(Claim, (self.store, self.name))]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Delete the claim unless a later one has replaced it."""
        claim = state.get(Claim, self.store, self.name)
        if claim is not None and self.body_sha256 == _sha256(claim.body):
            state.delete(claim)


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()

"""Entries about created-if-absent names at a store that has no conditional create.

Source: commit protocol, "Job commit": the journal named in `job.json` is their arbiter.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Self

from lockgate.storage_core.errors import AlreadyExistsError
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.rows import Claim
from lockgate.storage_core.journal.entries.state import Key, State


class ClaimName(Op, frozen=True, tag="claim-name"):
    """Create a name if it is absent.

    Attributes:
        body: What stands there from now on, in base 64.
    """

    store: str
    name: str
    body: str

    def touches(self) -> Iterable[Key]:
        """Name the claim."""
        return [(Claim, (self.store, self.name))]

    def fold(self, state: State, moment: Moment) -> None:
        """Claim it, if nobody has."""
        if state.get(Claim, self.store, self.name) is not None:
            raise AlreadyExistsError(f"{self.store}/{self.name}: the journal holds this name for another")
        state.put(Claim(store=self.store, name=self.name, body=self.body, claimed_s=moment.at_s))


class ReleaseName(Op, frozen=True, tag="release-name"):
    """Forget a name whose object was deleted.

    Attributes:
        body_sha256: Of the claim that is meant, in hex: a later one of the same name stays. Entries of the
            first version have none, and mean whichever stands.
    """

    store: str
    name: str
    body_sha256: str | None = None

    @classmethod
    def of(cls, claim: Claim) -> Self:
        """Return what forgets this claim and no other."""
        return cls(store=claim.store, name=claim.name, body_sha256=_sha256(claim.body))

    def touches(self) -> Iterable[Key]:
        """Name the claim."""
        return [(Claim, (self.store, self.name))]

    def fold(self, state: State, moment: Moment) -> None:  # noqa: ARG002 - of the base
        """Remove the claim, unless another has taken its place."""
        claim = state.get(Claim, self.store, self.name)
        if claim is not None and self.body_sha256 in {None, _sha256(claim.body)}:
            state.delete(claim)


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()

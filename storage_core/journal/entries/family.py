"""Entry family: kinds of rows and entries that are versioned together.

To find an entry: `FAMILIES` lists the descriptions of all families, and each lists its kinds of rows and
entries. The journal's own is `JOURNAL`. A process imports the others when it first needs them, so it always
knows all families. `encode_op` and `decode_op` store an entry under its tag.

Source: docs/internals/decisions.md, ADR 17.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, Final

import msgspec

from lockgate.storage_core.decoding import decode_json
from lockgate.storage_core.errors import JournalVersionError, MalformedJournalError
from lockgate.storage_core.journal.entries.claim_entries import Claim, ClaimName, ReleaseName
from lockgate.storage_core.journal.entries.lease_entries import (
    DropLease,
    FreeLease,
    Lease,
    RearmLeases,
    SuspendLease,
    TakeLease,
)
from lockgate.storage_core.journal.entries.op import Event, Moment, Op
from lockgate.storage_core.journal.entries.state import Key, Row, Span, State

FAMILIES: Final[tuple[str, ...]] = (
    "lockgate.storage_core.journal.entries.family:JOURNAL",
    "lockgate.storage_core.commit.registry.entries:JOBS",
    "lockgate.storage_core.blobs.registry.family:BLOBS",
    "lockgate.storage_core.files.namespace.family:FILES",
    "lockgate.storage_core.satellite.whiteouts:MOUNTS",
)
"""The families' descriptions, as `module:name`."""


def _nothing(event: Any) -> Iterable[Any]:  # noqa: ARG001 - the default of functions that need the event
    return ()


class Reaction(msgspec.Struct, frozen=True, kw_only=True):
    """A family's reaction to an event, within the same fold.

    Attributes:
        event: Type of the events.
        fold: Changes the state; refuses the whole entry by raising a `LockgateError`.
        touches: Returns the rows that `fold` reads. They are loaded together with those of the entry.
        spans: Returns the spans whose rows `fold` reads.
    """

    event: type[Event]
    fold: Callable[[State, Moment, Any], None]
    touches: Callable[[Any], Iterable[Key]] = _nothing
    spans: Callable[[Any], Iterable[Span]] = _nothing


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of rows and entries that are versioned together.

    Attributes:
        name: Unique name; the database keeps the family's version under it.
        version: Version of the rows and entries, which a database and a checkpoint record.
        rows: The rows that entries fold into.
        ops: The kinds of entries.
        reactions: Reactions to events of other families.
        rearm: Function, as `module:name`, that takes a `Reading` and yields the entries to write before safe
            mode ends; empty: none. It is a name because its module may need SQL.
        release: Function, as `module:name`, that takes a `Reading` and a resource, and yields the entries to
            write before its driver is replaced, so that the fold itself has little left to do; empty: none.
            Each has a field `stamp` for that of the new driver's lease, which its fold compares.
        soft_rows: Rows of what becomes outdated without reports. They are outside entries, verification and
            checkpoints, and a restored journal begins without any.
    """

    name: str
    version: int
    rows: tuple[type[Row], ...]
    ops: tuple[type[Op], ...]
    reactions: tuple[Reaction, ...] = ()
    rearm: str = ""
    release: str = ""
    soft_rows: tuple[type[Row], ...] = ()


JOURNAL: Final = Family(
    name="journal",
    version=1,
    rows=(Lease, Claim),
    ops=(TakeLease, SuspendLease, FreeLease, DropLease, RearmLeases, ClaimName, ReleaseName),
)
"""The journal's own family: leases, claims and the tables that order all entries."""


class Families:
    """A set of families, in the order of their names.

    Attributes:
        rows: The rows of all families.
        soft_rows: The soft rows of all families.
        indexed: Names of all columns with an index, other than keys.

    Raises:
        ValueError: Two families have the same name, table or kind of entry.
    """

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(sorted(families, key=lambda family: family.name))
        _refuse_twice("name", (family.name for family in self))
        self.rows = tuple(chain.from_iterable(family.rows for family in self))
        self.soft_rows = tuple(chain.from_iterable(family.soft_rows for family in self))
        _refuse_twice("table", (kind.TABLE for kind in (*self.rows, *self.soft_rows)))
        self.ops = tuple(chain.from_iterable(family.ops for family in self))
        _refuse_twice("kind of entry", (tag_of(kind) for kind in self.ops))
        self.indexed = frozenset(chain.from_iterable(chain.from_iterable(kind.INDEXES for kind in self.rows)))
        self._ops = {tag_of(kind): kind for kind in self.ops}
        self._reactions: dict[type[Event], list[Reaction]] = {}
        self._touching: dict[type[Event], list[Callable[[Any], Iterable[Key]]]] = {}
        self._spanning: dict[type[Event], list[Callable[[Any], Iterable[Span]]]] = {}
        for reaction in chain.from_iterable(family.reactions for family in self):
            self._reactions.setdefault(reaction.event, []).append(reaction)
            if reaction.touches is not _nothing:
                self._touching.setdefault(reaction.event, []).append(reaction.touches)
            if reaction.spans is not _nothing:
                self._spanning.setdefault(reaction.event, []).append(reaction.spans)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families)

    @property
    def versions(self) -> dict[str, int]:
        """The version of each family, by name."""
        return {family.name: family.version for family in self}

    def op(self, tag: str) -> type[Op] | None:
        """Return the kind of entry with this tag, None if it is unknown."""
        return self._ops.get(tag)

    def reactions(self, event: type[Event]) -> Iterable[Reaction]:
        """Return the reactions to a type of event, in the order of the families' names."""
        return self._reactions.get(event, ())

    def touches(self, op: Op) -> Iterator[Key]:
        """Yield the keys of the rows that an entry's fold and the reactions to it read."""
        yield from op.touches()
        for event in op.announces():
            for touches in self._touching.get(type(event), ()):
                yield from touches(event)

    def spans(self, op: Op) -> Iterator[Span]:
        """Yield the spans that an entry's fold and the reactions to it read."""
        yield from op.spans()
        for event in op.announces():
            for spans in self._spanning.get(type(event), ()):
                yield from spans(event)

    def refuse_other(self, versions: Mapping[str, int], where: str) -> None:
        """Raise unless this program knows all families of a database or file in these versions.

        Raises:
            JournalVersionError: It lacks one, or knows another version. The message names the family.
        """
        for name, version in sorted(versions.items()):
            known = self.versions.get(name)
            if version != known:
                knows = "lacks it" if known is None else f"knows version {known}"
                raise JournalVersionError(
                    f"{where} has the entry family {name!r} in version {version}, and this program {knows}; "
                    "nothing was changed; use the release of Lockgate that made it"
                )


def known_families() -> Families:
    """Return all families, importing the modules that describe them at the first call."""
    return _load(FAMILIES)


def encode_op(op: Op) -> tuple[str, str]:
    """Return an entry's tag and its payload, in JSON."""
    return tag_of(op), msgspec.json.encode(op, order="deterministic").decode()


def decode_op(name: str, payload: str, where: object) -> Op:
    """Decode an entry.

    Raises:
        MalformedJournalError: Its tag is unknown, or a field is invalid; the message names the entry.
    """
    kind = known_families().op(name)
    if kind is None:
        raise MalformedJournalError(f"{where}: {name[:60]!r} is no kind of entry that this version knows")
    try:
        op: Op = decode_json(payload, kind)
    except msgspec.DecodeError as error:
        raise MalformedJournalError(f"{where}: not a readable {name}: {error}") from None
    return op


def decode_result(op: Op, result: str, where: object) -> Any:
    """Decode the return value of an entry's fold.

    Raises:
        MalformedJournalError: It does not have the type that this kind of entry returns.
    """
    try:
        return decode_json(result, op.RESULT)
    except msgspec.DecodeError as error:
        raise MalformedJournalError(
            f"{where}: not a readable result of {type(op).__name__}: {error}"
        ) from None


def announce(state: State, moment: Moment, event: Event) -> None:
    """Run the reactions of the other families to an event, within the calling fold.

    A replay of the entry announces the same event, so the reactions change the same rows again.

    Raises:
        LockgateError: A reaction refuses the entry.
    """
    for reaction in known_families().reactions(type(event)):
        reaction.fold(state, moment, event)


def tag_of(op: Op | type[Op]) -> str:
    """Return the name under which a kind of entry is stored."""
    return str(op.__struct_config__.tag)


@cache
def _load(names: tuple[str, ...]) -> Families:
    return Families(pkgutil.resolve_name(name) for name in names)


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(f"entry families have the same {what}: {', '.join(twice)}")

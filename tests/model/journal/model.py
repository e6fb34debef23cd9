"""An in-memory model of the journal, written from its design: expected responses and tables.

It shares only the data types of entries (`journal.entries`) with the code, and no fold.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from lockgate.storage_core.commit.registry.entries import ForgetJob, RecordJob, RecordTask
from lockgate.storage_core.errors import (
    AlreadyExistsError,
    ConflictError,
    FencedError,
    LeaseHeldError,
    LockgateError,
    SafeModeError,
    StaleRequestError,
)
from lockgate.storage_core.journal import Mutation, Stamp
from lockgate.storage_core.journal.entries.claim_entries import ClaimName, ReleaseName
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.lease_entries import DropLease, FreeLease, SuspendLease, TakeLease
from lockgate.storage_core.journal.entries.op import Op

TABLES: Final = tuple(kind.TABLE for kind in known_families().rows)
"""Those of entries that the model does not know stay empty."""

CLOCKS_APART_S: Final = 300.0
TICK_S: Final = 1e-6
RENEWABLE: Final = frozenset({"held", "recovering"})
OF_ENTRY: Final = {"stamp"}
"""Fields of `RecordJob` that its row lacks."""
ENDED: Final = {"committed", "failed"}
COUNTS: Final = ("jobs", "rows", "with_rows", "size_bytes", "with_size", "commit_ms", "with_time")
"""Columns of the totals of a day."""
TAKEN_FROM: Final = {
    "write": {"free"},
    "recover": {"free", "hard"},
    "take over": {"free", "held", "soft", "suspended", "hard", "recovering"},
}

Row = dict[str, Any]
Table = dict[tuple[Any, ...], Row]
Refusal = type[LockgateError]


@dataclass(frozen=True)
class Accepted:
    """The expected result of an applied mutation.

    Attributes:
        result: For a lease that was taken, the stamp and the previous state of the lease.
    """

    stamp: Stamp
    result: tuple[Stamp, str] | None
    at_s: float
    is_repeat: bool = False


Answer = Accepted | Refusal


class Refused(Exception):  # noqa: N818 - no error: an answer
    def __init__(self, why: Refusal) -> None:
        self.why = why


@dataclass
class JournalModel:
    """One journal.

    Attributes:
        known: Outcome and kind of op of each request, by its id.
        holders: Time of the last renewal of each holder.
        history: Tables after each entry, without the renewals, which have no entries.
    """

    epoch: int = 1
    sequence: int = 0
    is_safe: bool = False
    pruned: int = 0
    requests_since_s: float = 0.0
    known: dict[str, tuple[type[Op], Accepted]] = field(default_factory=dict)
    holders: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=lambda: {name: {} for name in TABLES})
    history: dict[int, dict[str, Table]] = field(default_factory=lambda: {0: {name: {} for name in TABLES}})

    @property
    def stamp(self) -> Stamp:
        """Return the stamp of the newest entry."""
        return Stamp(self.epoch, self.sequence)

    def ask(self, mutation: Mutation, now_s: float) -> Answer:
        """Apply one mutation: it is repeated, stale, refused without an effect, or the next entry."""
        if mutation.request_id in self.known:
            kind, answer = self.known[mutation.request_id]
            return replace(answer, is_repeat=True) if kind is type(mutation.op) else ConflictError
        if mutation.asked_s < self.requests_since_s:
            return StaleRequestError
        stamp = Stamp(self.epoch, self.sequence + 1)
        try:
            result = self._fold(mutation.op, stamp, now_s)
        except Refused as refused:
            return refused.why
        self.sequence += 1
        answer = Accepted(stamp, result, now_s)
        self.known[mutation.request_id] = (type(mutation.op), answer)
        self.history[self.sequence] = without_renewals(self.tables)
        return answer

    def explain(
        self, calls: Sequence[tuple[Mutation, Answer]], now_s: float
    ) -> list[tuple[Mutation, Answer]]:
        """Find an order in which concurrent mutations have these outcomes; return those that fit no order.

        Mutations with an effect are in the order of their stamps. Others may come anywhere between them.
        """
        with_effect = [(m, a) for m, a in calls if isinstance(a, Accepted) and not a.is_repeat]
        rest = [pair for pair in calls if pair not in with_effect]
        unfit: list[tuple[Mutation, Answer]] = []
        rest = self._without_fitting(rest, now_s)
        for mutation, answer in sorted(with_effect, key=lambda pair: pair[1].stamp):
            if self.ask(mutation, now_s) != answer:
                unfit.append((mutation, answer))
            rest = self._without_fitting(rest, now_s)
        return unfit + rest

    def renew(self, holder: str, held: Mapping[str, Stamp], now_s: float) -> set[str]:
        """Renew the leases that a holder holds, and no others; return the resources that it has lost."""
        renewable = [
            lease
            for lease in self.tables["lease"].values()
            if lease["holder"] == holder and lease["standing"] in RENEWABLE
        ]
        mine = [lease for lease in renewable if held.get(lease["resource"]) == _stamp(lease)]
        for lease in renewable:
            if lease not in mine and lease["dropped_s"] is None:
                lease["dropped_s"] = now_s
        if mine:
            self._renew(holder, mine, now_s)
        return held.keys() - {lease["resource"] for lease in mine}

    def _renew(self, holder: str, leases: Sequence[Row], now_s: float) -> None:
        newest_s = max(self.holders.get(holder, 0.0), *(lease["renewed_s"] for lease in leases))
        later_s = max(now_s, newest_s + TICK_S)  # if the clock was set back, or stands still
        self.holders[holder] = later_s
        for lease in leases:
            lease.update(renewed_s=later_s, dropped_s=None)

    def begin_epoch(self, number: int) -> None:
        """Start a new epoch, like a failover."""
        assert number > self.epoch
        self.epoch = number

    def leave_safe_mode(self, now_s: float) -> int | None:
        """Leave safe mode and restart all leases; return their number, or None if it was not in safe mode."""
        if not self.is_safe:
            return None
        held = [lease for lease in self.tables["lease"].values() if lease["standing"] != "free"]
        by_entry = [
            lease for lease in held if lease["standing"] == "suspended" or lease["dropped_s"] is not None
        ]
        for lease in by_entry:
            lease["renewed_s"] = now_s
            if lease["suspended_until_s"] is not None:
                lease["suspended_until_s"] = max(lease["suspended_until_s"], now_s + lease["hard_s"])
        rest = [lease for lease in held if lease not in by_entry]
        for holder in {lease["holder"] for lease in rest}:
            self._renew(holder, [lease for lease in rest if lease["holder"] == holder], now_s)
        self.is_safe = False
        if by_entry:
            self.sequence += 1
            self.history[self.sequence] = without_renewals(self.tables)
        return len(held)

    def forget_requests(self, before_s: float) -> None:
        """Forget the ids of older pruned entries, and refuse requests of that age from now on."""
        old = [
            request
            for request, (_, answer) in self.known.items()
            if answer.stamp.sequence <= self.pruned and answer.at_s < before_s - CLOCKS_APART_S
        ]
        for request in old:
            del self.known[request]
        if old:
            self.requests_since_s = max(self.requests_since_s, before_s)

    def copy(self) -> JournalModel:
        """Return a snapshot of the model."""
        return replace(
            self,
            known=dict(self.known),
            holders=dict(self.holders),
            tables=copy.deepcopy(self.tables),
            history=dict(self.history),
        )

    def lease_states(self, now_s: float) -> dict[str, str]:
        """Return the state of every lease."""
        return {lease["resource"]: state_of(lease, now_s) for lease in self.tables["lease"].values()}

    def _without_fitting(
        self, calls: Sequence[tuple[Mutation, Answer]], now_s: float
    ) -> list[tuple[Mutation, Answer]]:
        return [pair for pair in calls if self.copy().ask(pair[0], now_s) != pair[1]]

    def _fold(self, op: Op, stamp: Stamp, now_s: float) -> tuple[Stamp, str] | None:
        fold: Callable[..., tuple[Stamp, str] | None] = _FOLDS[type(op)]
        return fold(self, op, stamp, now_s)

    def _take(self, op: TakeLease, stamp: Stamp, now_s: float) -> tuple[Stamp, str]:
        lease = self.tables["lease"].get((op.resource,))
        before = "free" if lease is None else state_of(lease, now_s)
        if op.purpose == "recover" and self.is_safe:
            raise Refused(SafeModeError)
        if op.seen is not None and lease is not None and lease["standing"] in RENEWABLE:
            was_seen = _stamp(lease) == op.seen.stamp and lease["renewed_s"] <= op.seen.renewed_s
            before = "hard" if was_seen else lease["standing"]
        if before not in TAKEN_FROM[op.purpose]:
            raise Refused(LeaseHeldError)
        self.tables["lease"][op.resource,] = {
            "resource": op.resource,
            "holder": op.holder,
            "epoch": stamp.epoch,
            "sequence": stamp.sequence,
            "standing": "recovering" if op.purpose == "recover" else "held",
            "renewed_s": max(now_s, self.holders.get(op.holder, 0.0)),  # later if the clock was set back
            "soft_s": op.soft_s,
            "hard_s": op.hard_s,
            "suspended_until_s": None,
            "detail": op.detail,
            "dropped_s": None,
        }
        return stamp, before

    def _suspend(self, op: SuspendLease, stamp: Stamp, now_s: float) -> None:
        lease = self._held(op.resource, op.stamp)
        lease.update(standing="suspended", suspended_until_s=now_s + op.for_s)

    def _free(self, op: FreeLease, stamp: Stamp, now_s: float) -> None:
        self._held(op.resource, op.stamp).update(standing="free", suspended_until_s=None)

    def _drop(self, op: DropLease, stamp: Stamp, now_s: float) -> None:
        if self.tables["lease"].get((op.resource,), {}).get("standing") == "free":
            del self.tables["lease"][op.resource,]

    def _held(self, resource: str, stamp: Stamp) -> Row:
        lease = self.tables["lease"].get((resource,))
        if lease is None or _stamp(lease) != stamp or lease["standing"] == "free":
            raise Refused(FencedError)
        return lease

    def _record_job(self, op: RecordJob, stamp: Stamp, now_s: float) -> None:
        jobs = self.tables["job"]
        known = jobs.get((op.destination, op.job_id), {"phase": "", "job_attempt": "", "ended_s": None})
        if known["phase"] in ENDED and op.phase not in ENDED:
            return  # it was accepted as an entry, but changes nothing
        ended_s = (known["ended_s"] or now_s) if op.phase in ENDED else None
        jobs[op.destination, op.job_id] = {
            **{name: getattr(op, name) for name in op.__struct_fields__ if name not in OF_ENTRY},
            "job_attempt": op.job_attempt or known["job_attempt"],
            "changed_s": now_s,
            "ended_s": ended_s,
        }
        self._count_days()
        places = self.tables["destination"]
        first_s = places.get((op.destination,), {"first_s": now_s})["first_s"]
        places[op.destination,] = {"url": op.destination, "first_s": first_s, "last_s": now_s}

    def _record_task(self, op: RecordTask, stamp: Stamp, now_s: float) -> None:
        row = {name: getattr(op, name) for name in op.__struct_fields__} | {"committed_s": now_s}
        self.tables["task_attempt"].setdefault((op.destination, op.job_id, op.task_id, op.attempt_id), row)

    def _forget_job(self, op: ForgetJob, stamp: Stamp, now_s: float) -> None:
        of = (op.destination, op.job_id)
        self.tables["job"].pop(of, None)
        self._count_days()
        rest = {key: row for key, row in self.tables["task_attempt"].items() if key[:2] != of}
        self.tables["task_attempt"] = rest

    def _count_days(self) -> None:
        """Count the committed jobs of each day again, for their destination and for all."""
        days: Table = {}
        for job in self.tables["job"].values():
            if job["phase"] != "committed":
                continue
            took_ms = None if job["decided_s"] is None else round(1000 * (job["ended_s"] - job["decided_s"]))
            for place in (job["destination"], ""):
                key = (place, int(job["ended_s"] // 86_400))
                day = days.setdefault(key, dict.fromkeys(COUNTS, 0) | {"destination": place, "day": key[1]})
                day["jobs"] += 1
                for value, total, count in (
                    (job["rows"], "rows", "with_rows"),
                    (job["size_bytes"], "size_bytes", "with_size"),
                    (took_ms, "commit_ms", "with_time"),
                ):
                    day[total] += max(0, value or 0)
                    day[count] += value is not None
        self.tables["job_day"] = days

    def _claim(self, op: ClaimName, stamp: Stamp, now_s: float) -> None:
        row = {"store": op.store, "name": op.name, "body": op.body, "claimed_s": now_s}
        if self.tables["claim"].setdefault((op.store, op.name), row) is not row:
            raise Refused(AlreadyExistsError)

    def _release(self, op: ReleaseName, stamp: Stamp, now_s: float) -> None:
        claim = self.tables["claim"].get((op.store, op.name))
        if claim is not None and sha256(claim["body"].encode()).hexdigest() == op.body_sha256:
            del self.tables["claim"][op.store, op.name]


_FOLDS: Final[dict[type[Op], Callable[..., Any]]] = {
    TakeLease: JournalModel._take,
    SuspendLease: JournalModel._suspend,
    FreeLease: JournalModel._free,
    DropLease: JournalModel._drop,
    RecordJob: JournalModel._record_job,
    RecordTask: JournalModel._record_task,
    ForgetJob: JournalModel._forget_job,
    ClaimName: JournalModel._claim,
    ReleaseName: JournalModel._release,
}


def state_of(lease: Row, now_s: float) -> str:
    """Return the state of a lease: overdue after its soft limit, lapsed after its hard one."""
    age_s = now_s - lease["renewed_s"]
    if lease["standing"] == "free":
        return "free"
    if lease["standing"] == "suspended":
        return "suspended" if now_s < lease["suspended_until_s"] else "hard"
    if age_s >= lease["hard_s"]:
        return "hard"
    if lease["standing"] == "recovering":
        return "recovering"
    return "soft" if age_s >= lease["soft_s"] else "held"


def with_renewals_of_held(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return tables without the renewals of leases that are suspended or free: they mean nothing."""
    rest = copy.deepcopy(dict(tables))
    for lease in rest["lease"].values():
        if lease["standing"] not in RENEWABLE:
            del lease["renewed_s"], lease["dropped_s"]
    return rest


def without_renewals(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return tables without the columns that no entry sets."""
    rest = copy.deepcopy(dict(tables))
    for lease in rest["lease"].values():
        del lease["renewed_s"], lease["dropped_s"]
    return rest


def _stamp(lease: Row) -> Stamp:
    return Stamp(lease["epoch"], lease["sequence"])

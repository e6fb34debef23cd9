"""The blob server of the state machine: it is started, killed, disturbed and compared with the model."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from hypothesis.stateful import RuleBasedStateMachine

from lockgate.storage_core.blobs.keys import BlobKey, digest_of, upload_set_of
from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Reference, UploadSet
from lockgate.storage_core.blobs.registry.references import DropReference, TakeReference
from lockgate.storage_core.blobs.server.blob_server import BlobServer
from lockgate.storage_core.blobs.storage.ha import HaBlobs
from lockgate.storage_core.blobs.storage.local import LocalBlobs
from lockgate.storage_core.blobs.sweep.orphans import recover
from lockgate.storage_core.errors import (
    LockgateError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal import Journal, open_journal
from lockgate.storage_core.stores.instrumented import VERBS, instrument
from lockgate.storage_core.stores.local.store import LocalStore
from tests.model.blobs.model import HARD_S, BlobsModel, Key, KnownBlob, Refused
from tests.support.commit.destination import Crash, ManualClock, dying

PART_BYTES: Final = 1_000
AT_LEAST_RENEWED_S: Final = 600.0
_STORE: Final = re.compile(rf"[\w-]+\.({'|'.join(VERBS)})\.before")
_numbers = count(1)


@dataclass(frozen=True)
class Strike:
    """A fault of a call: death or a lost response at a step, or no response from the journal."""

    kind: str = "none"
    step: int = 0


class BlobServerUnderTest(RuleBasedStateMachine):
    """A server, the blobs that were put into it, and its model.

    Attributes:
        url: URL of the journal's database; each example has its own journal in it.
        path: Path of a folder; each example has its own folder in it.
        data: Bytes of every blob that was ever put.
        adopted: Blobs whose bytes were found without a row.
        renewed: Time of the last lease renewal of each client's set by this server.
        watched: The renewal of each set that sweeps have seen, since when at the earliest, and since when at
            the latest by the monotonic clock: an interrupted sweep may have seen it.
    """

    url: ClassVar[str]
    path: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"blobs-{next(_numbers)}"
        self.root = self.path / self.name
        self.clock = ManualClock(1_000_000_000.0)
        self.model = BlobsModel()
        self.data: dict[Key, bytes] = {}
        self.renewed: dict[str, float] = {}
        self.watched: dict[str, tuple[float, float, float]] = {}
        self.adopted: set[Key] = set()
        self.ha_is_down = False
        self._begin()

    def _begin(self) -> None:
        self.journal: Journal = open_journal(self.url, self.name, clock=self.clock)
        store = instrument(LocalStore(self.root / "ha"))
        ha = HaBlobs(store, part_bytes=PART_BYTES, parallelism=1)
        self.server = BlobServer(LocalBlobs(self.root / "blobs"), ha, self.journal, clock=self.clock)
        FAILPOINTS.observer = self._pass

    def _restart(self) -> None:
        """Restart as another process, which adopts the stored blobs if it can list them."""
        self.server.sets.renewer.close()
        self.journal.close()
        self._begin()
        before = self._seen()
        try:
            staged = recover(self.server.stores)
        except StoreUnavailableError:
            assert self.ha_is_down
            staged = None
        seen = self._seen()
        new = {key: blob for key, blob in seen.blobs.items() if key not in before.blobs}
        assert staged is None or staged.blobs == len(new)
        assert replace(seen, blobs={key: seen.blobs[key] for key in before.blobs}) == before
        self._adopt(seen, self.clock.now)
        self.model = replace(self.model, blobs=self.model.blobs | new)

    def _renew(self) -> None:
        """Renew what the server holds: however late, unless a sweep has given it up."""
        there = self._held_sets() & set(self.model.sets)
        self.server.sets.renewer.renew()
        assert there <= self._held_sets()
        self.renewed.update(dict.fromkeys(there, self.clock.now))

    def _held_sets(self) -> set[str]:
        return {resource.removeprefix("upload:") for resource in self.server.sets.renewer._held}

    def _pass(self, point: str) -> None:
        if self.ha_is_down and _STORE.fullmatch(point):
            raise StoreUnavailableError(f"{point}: the HA store is down")

    def _assert_swept(self, before: BlobsModel, now_s: float, *, is_whole: bool) -> None:
        """Compare the result of a sweep with the model, then update the model.

        Args:
            before: Blobs before the sweep.
            now_s: Time of the sweep.
            is_whole: Whether the sweep finished and no store was down.
        """
        seen = self._seen()
        self._adopt(seen, now_s)
        lapsed = set(before.sets) - set(seen.sets)
        must_lapse, may_lapse = self._watched(before.sets, is_whole=is_whole)
        assert lapsed <= may_lapse
        assert must_lapse <= lapsed or not is_whole
        late = before.changed(lambda model: model.lapse(now_s))
        stages = [before, late, late.changed(lambda model: model.abandon(lapsed, now_s))]
        own_since_s = self._own_since_s()
        after = stages[-1].changed(lambda model: model.sweep(now_s, own_since_s))
        for key in before.blobs:
            is_due = stages[-1].is_due(key, now_s)
            blob = seen.blobs.get(key)
            if blob is None:
                assert is_due, "a blob went that is not due"
            elif blob.is_marked:
                assert is_due, "a blob is marked that is not due"
            else:
                assert blob in [stage.blobs[key] for stage in stages]
        assert seen.final.items() <= before.final.items()
        assert set(before.final) - set(seen.final) <= set(before.final) - set(after.final)
        if is_whole:
            known = {key: blob for key, blob in seen.blobs.items() if key in before.blobs}
            assert (known, seen.final, seen.sets) == (after.blobs, after.final, after.sets)
            for job_id in before.final:
                self._assert_no_bytes_of(job_id)
        self.model = seen

    def _watched(self, sets: Iterable[str], *, is_whole: bool) -> tuple[set[str], set[str]]:
        """Return the sets that a sweep must give up and those that it may, and note what it has seen."""
        must_lapse, may_lapse, now_s = set(), set(), self.clock.monotonic_s()
        for one in sets:
            renewal_s, first_s, last_s = self.watched.get(one, (math.nan, now_s, math.inf))
            if renewal_s != self.renewed[one]:
                first_s, last_s = now_s, math.inf
            self.watched[one] = self.renewed[one], first_s, min(last_s, now_s if is_whole else math.inf)
            if now_s - first_s >= HARD_S:
                may_lapse.add(one)
            if now_s - last_s >= HARD_S:
                must_lapse.add(one)
        return must_lapse, may_lapse

    def _keeps_elsewhere(self, key: Key, owner: str, *, is_dropped: bool) -> bool:
        """Refer to a blob as another process; return whether it was allowed."""
        with open_journal(self.url, self.name, clock=self.clock) as journal:
            try:
                journal.apply(TakeReference(job_id=key[0], blob_key=key[1], owner=owner))
            except ObjectNotFoundError:
                return False
            if is_dropped:
                journal.apply(DropReference(job_id=key[0], blob_key=key[1], owner=owner))
        return True

    def _some_key(self, chance: Random) -> Key:
        """Return the key of a blob that exists or may have been deleted."""
        return chance.choice([*self.model.blobs, *self.model.blobs, *self.data])

    def _drop(self, key: Key, owner: str, strike: Strike) -> None:
        now_s = self.clock.now
        self._ask(
            lambda model: model.drop(key, owner, now_s),
            lambda: self.server.drop(*key, owner),
            strike,
        )

    @contextmanager
    def _injected(self, strike: Strike) -> Iterator[None]:
        """Inject the fault into the call."""
        passed = journal_writes = 0

        def observe(point: str) -> None:
            nonlocal passed, journal_writes
            passed += 1
            if strike.kind == "crash" and passed > strike.step:
                raise Crash(point)
            if point.endswith("journal-write.after"):
                journal_writes += 1
                if strike.kind == "deaf" or (strike.kind == "lost" and journal_writes == 1 + strike.step % 3):
                    raise OutcomeUnknownError(f"{point}: the answer was lost on purpose")
            self._pass(point)

        FAILPOINTS.observer = dying(observe)
        try:
            yield
        finally:
            FAILPOINTS.observer = self._pass

    def _ask(
        self,
        change: Callable[[BlobsModel], None],
        call: Callable[[], object],
        strike: Strike,
        *,
        check: Callable[[BlobsModel], None] | None = None,
        needs_ha: bool = False,
        is_done_when_ha_is_down: bool = False,
    ) -> bool:
        """Make a call that may meet a fault, and compare its result with the model.

        Args:
            change: Returns the model after the call; evaluated after the call.
            call: Calls the server.
            strike: Fault of the call.
            check: Check against the model before the call; by default whether it refuses the change.
            needs_ha: Whether the call fails while the HA store is down.
            is_done_when_ha_is_down: Whether it fails then but has its effect nevertheless.

        Returns:
            Whether the call had its complete effect.
        """
        refused: type[LockgateError] | None = None
        try:
            self.model.changed(check or change)
        except Refused as refusal:
            refused = refusal.kind
        try:
            with self._injected(strike):
                call()
        except (Crash, OutcomeUnknownError) as error:
            if self._seen() != self.model:
                self._take(change, strike)  # it had its effect; the invariants compare
            if isinstance(error, Crash):
                self._restart()
            return False
        except LockgateError as error:
            if self.ha_is_down and isinstance(error, StoreUnavailableError) and is_done_when_ha_is_down:
                self._take(change, strike)
            elif not (
                (refused is not None and isinstance(error, refused))
                or (self.ha_is_down and needs_ha and isinstance(error, StoreUnavailableError))
                or _own_set_had_lapsed(error)
            ):
                raise
            return False
        assert refused is None, "the model refuses it"
        self._take(change, strike)
        return True

    def _take(self, change: Callable[[BlobsModel], None], strike: Strike) -> None:
        """Apply a change to the model; after a fault, an idle log may be left to the sweep."""
        after, seen = self.model.changed(change), self._seen()
        for key in set(self.model.blobs) - set(after.blobs):
            left = seen.blobs.get(key)
            if left is not None:
                assert strike.kind != "none"
                assert left.staged_s is not None
                after.blobs[key] = left
        self.model = after

    def _seen(self) -> BlobsModel:
        """Return the rows in the form of the model, without the server's own upload sets."""
        with self.journal.reading() as reading:
            blobs, references = reading.where(Blob, {}), reading.where(Reference, {})
            jobs, sets = reading.where(BlobJob, {}), reading.where(UploadSet, {})
        owners = defaultdict[tuple[str, str], list[tuple[str, float | None]]](list)
        for one in references:
            owners[one.job_id, one.blob_key].append((one.owner, one.until_s))
        return BlobsModel(
            {
                (blob.job_id, BlobKey(blob.blob_key)): KnownBlob(
                    blob.guarantee,
                    blob.upload_set,
                    blob.staged_s,
                    blob.deleting_s is not None,
                    tuple(sorted(owners.get(blob.key, ()))),
                    is_log=blob.use == "log",
                )
                for blob in blobs
            },
            {job.job_id: job.final_s for job in jobs if job.final_s is not None},
            {one.upload_set: one.job_id for one in sets if one.job_id},
            set(owners) - {blob.key for blob in blobs},
        )

    def _own_since_s(self) -> float:
        """Return the start of the oldest open set that belongs to no client."""
        with self.journal.reading() as reading:
            return min((one.began_s for one in reading.where(UploadSet, {"job_id": ""})), default=math.inf)

    def _adopt(self, seen: BlobsModel, now_s: float) -> None:
        """Add blobs to the model that a listing found without a row: complete and staged."""
        for key in set(seen.blobs) - set(self.model.blobs):
            assert seen.blobs[key] == KnownBlob("ha", "", now_s, is_marked=False)
            self.adopted.add(key)
            copies = [path for path in self._copies(key) if path.exists()]
            assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in copies} == {digest_of(key[1])}
            self.data[key] = copies[0].read_bytes()

    def _copies(self, key: Key) -> list[Path]:
        return [self.server.stores.local.path_of(*key), self.root / "ha" / key[0] / key[1]]

    def _assert_no_bytes_of(self, job_id: str) -> None:
        """Assert that an ended job has no bytes, except those of a later put until they expire."""
        with self.journal.reading() as reading:
            own = {one.upload_set for one in reading.where(UploadSet, {"job_id": ""})}
        for store in ("blobs", "ha"):
            left = [path.name for path in (self.root / store / job_id).glob("*")]
            assert not [name for name in left if upload_set_of(BlobKey(name)) not in own]


def _own_set_had_lapsed(error: LockgateError) -> bool:
    """Record that the server's own set was given up during a long stop: the next put opens another."""
    return isinstance(error, StoreUnavailableError) and "had lapsed" in str(error)

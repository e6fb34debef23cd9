"""A blob server in any order of calls, deaths, outages and time, held against the model."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage_core.blobs.ha import HaBlobs
from storage_core.blobs.keys import NO_JOB, BlobKey, UploadSetId, digest_of, new_upload_set
from storage_core.blobs.local import LocalBlobs
from storage_core.blobs.recovery import recover
from storage_core.blobs.server import BlobServer
from storage_core.errors import (
    FencedError,
    LockgateError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from storage_core.failpoints import FAILPOINTS
from storage_core.journal import Journal, open_journal
from storage_core.journal.checkpoint import open_checkpoints
from storage_core.journal.ops.references import DropReference, TakeReference
from storage_core.journal.rows import Blob, BlobJob, BlobUse, Guarantee, Reference, UploadSet
from storage_core.journal.verify import verify
from storage_core.settings import Settings
from storage_core.stores.local import LocalStore
from storage_core.stores.watched import VERBS, watched
from tests.commit_world import Crash, ManualClock, dying
from tests.model_blobs.model import HARD_S, INTERVAL_S, BlobsModel, Key, KnownBlob, Refused

PART_BYTES: Final = 1_000
AT_LEAST_RENEWED_S: Final = 600.0
_STORE: Final = re.compile(rf"[\w-]+\.({'|'.join(VERBS)})\.before")
_numbers = count(1)


JOBS: Final = (NO_JOB, "sales", "stock")
ENDING_JOBS: Final = ("sales", "stock")
OWNERS: Final = ("job", "attempt:1", "receiver:1", "viewer:1")
LAPSES: Final = (None, None, None, 100.0, INTERVAL_S)
SIZES: Final = (0, 10, 10, 2 * PART_BYTES + 500)
GUARANTEES: Final[tuple[Guarantee, ...]] = ("ha", "ha", "recreatable")
USES: Final[tuple[BlobUse, ...]] = ("library", "message", "log")
PAUSES_S: Final = (1.0, AT_LEAST_RENEWED_S, INTERVAL_S / 2, INTERVAL_S)
SLEEPS_S: Final = (HARD_S - 1, HARD_S, INTERVAL_S)
WEIGHTS: Final = {
    "put": 8,
    "begin_set": 2,
    "complete_set": 2,
    "submit": 2,
    "refer": 3,
    "drop": 1,
    "drop_what_is_there": 5,
    "drop_owner": 1,
    "fail": 1,
    "finish": 1,
    "get": 1,
    "sweep": 5,
    "refer_amid_a_sweep": 4,
    "time_passes": 7,
    "the_server_is_stopped_and_wakes_up": 1,
    "the_server_is_killed_and_started_again": 1,
    "the_ha_store_goes_or_comes_back": 1,
}
"""How often each happens, of all that may."""

happenings = st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)])
faults = st.sampled_from(("none", "none", "none", "crash", "lost", "deaf"))


@dataclass(frozen=True)
class Strike:
    """What happens to a call: a death or a lost answer at a step, or no answer at all from the journal."""

    kind: str = "none"
    step: int = 0


class BlobsMachine(RuleBasedStateMachine):
    """What clients ask of one server, and what happens to it.

    Attributes:
        url: Of the journal's database; each example has a journal of its own in it.
        path: Of a folder; each example has a folder of its own in it.
        data: The bytes of every blob that was ever put.
        adopted: Those whose bytes were found, and no row.
        renewed: When this server's renewer last renewed the lease of each client's set.
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
        self.adopted: set[Key] = set()
        self.ha_is_down = False
        self._begin()

    def teardown(self) -> None:
        FAILPOINTS.observer = None
        try:
            self.nothing_stays_that_nobody_keeps()
        finally:
            self.server._renewer.close()
            self.journal.close()
            shutil.rmtree(self.root, ignore_errors=True)

    @rule(what=happenings, seed=st.integers(0, 2**32), fault=faults, step=st.integers(0, 30))
    def something_happens(self, what: str, seed: int, fault: str, step: int) -> None:
        """One rule for all: of many, each example would do without most of them."""
        getattr(self, what)(Random(seed), Strike(fault, step))

    # What clients ask

    def put(self, chance: Random, strike: Strike) -> None:
        """One that nothing keeps, one that an owner keeps, or one of a set that may be closed meanwhile."""
        job_id, size, owner = chance.choice(JOBS), chance.choice(SIZES), chance.choice(OWNERS)
        guarantee, use, lapse_s = chance.choice(GUARANTEES), chance.choice(USES), chance.choice(LAPSES)
        upload_set = chance.choice(["", *self.model.sets, *self.model.sets, *self.renewed])
        keeps = chance.choice(([], [owner], [owner]))
        data = bytes([len(self.data) % 251]) * size
        before = set(self.model.blobs)

        def call() -> None:
            self.server.put(
                data,
                job_id=job_id,
                guarantee=guarantee,
                use=use,
                upload_set=UploadSetId(upload_set) if upload_set else None,
                owners=keeps,
                lapse_s=lapse_s,
            )

        def change(model: BlobsModel) -> None:
            new = set(self._seen().blobs) - before
            assert len(new) == 1, "one put, one blob"
            (key,) = new
            assert digest_of(key[1]) == hashlib.sha256(data).hexdigest()
            until_s = None if lapse_s is None else self.clock.now + lapse_s
            is_kept = bool(upload_set or keeps)
            blob = KnownBlob(
                guarantee,
                upload_set,
                None if is_kept else self.clock.now,
                is_marked=False,
                is_log=use == "log",
            )
            model.blobs[key] = blob.with_owner(owner, until_s) if keeps else blob
            self.data[key] = data

        self._ask(
            change,
            call,
            strike,
            check=lambda model: model.check_put(job_id, upload_set),
            needs_ha=guarantee == "ha",
        )

    def begin_set(self, chance: Random, strike: Strike) -> None:
        job_id = chance.choice(ENDING_JOBS)
        try:
            upload_set = self.server.begin_set(job_id)
        except FencedError:
            assert job_id in self.model.final
        else:
            self.model.begin(upload_set, job_id)
            self.renewed[upload_set] = self.clock.now

    def complete_set(self, chance: Random, strike: Strike) -> None:
        upload_set = chance.choice([*self.model.sets, *self.renewed] or [new_upload_set()])
        now_s = self.clock.now
        self._ask(
            lambda model: model.complete(upload_set, now_s),
            lambda: self.server.complete_set(UploadSetId(upload_set)),
            strike,
        )

    def submit(self, chance: Random, strike: Strike) -> None:
        """A job with some of its blobs; any of them may be gone."""
        if not self.data:
            return
        job_id = self._some_key(chance)[0]
        if job_id == NO_JOB:  # it is none, and refused
            return
        keys = [key for key in self.data if key[0] == job_id][-chance.randint(1, 3) :]
        self._ask(
            lambda model: model.submit(job_id, keys),
            lambda: self.server.submit(job_id, [key for _, key in keys]),
            strike,
        )

    def refer(self, chance: Random, strike: Strike) -> None:
        """To a blob that is kept, is staged, or went long ago."""
        if not self.data:
            return
        owner, lapse_s = chance.choice(OWNERS), chance.choice(LAPSES)
        key = self._some_key(chance)
        until_s = None if lapse_s is None else self.clock.now + lapse_s
        self._ask(
            lambda model: model.refer(key, owner, until_s),
            lambda: self.server.refer(*key, owner, lapse_s=lapse_s),
            strike,
        )

    def drop(self, chance: Random, strike: Strike) -> None:
        """Of what may not be there."""
        if self.data:
            self._drop(self._some_key(chance), chance.choice(OWNERS), strike)

    def drop_what_is_there(self, chance: Random, strike: Strike) -> None:
        found = [(key, owner) for key, blob in self.model.blobs.items() for owner, _ in blob.owners]
        if found:
            self._drop(*chance.choice(found), strike)

    def drop_owner(self, chance: Random, strike: Strike) -> None:
        owner = chance.choice(OWNERS)
        now_s = self.clock.now
        self._ask(
            lambda model: model.drop_owner(owner, now_s),
            lambda: self.server.drop_owner(owner),
            strike,
        )

    def fail(self, chance: Random, strike: Strike) -> None:
        job_id = chance.choice(ENDING_JOBS)
        now_s = self.clock.now
        self._ask(lambda model: model.fail(job_id, now_s), lambda: self.server.fail(job_id), strike)

    def finish(self, chance: Random, strike: Strike) -> None:
        job_id = chance.choice(ENDING_JOBS)
        now_s = self.clock.now
        is_whole = self._ask(
            lambda model: model.finish(job_id, now_s),
            lambda: self.server.finish(job_id),
            strike,
            is_done_when_ha_is_down=True,
        )
        if is_whole:
            self._assert_no_bytes_of(job_id)

    def get(self, chance: Random, strike: Strike) -> None:
        if live := self.model.live():
            key = chance.choice(live)
            assert self.server.get(*key) == self.data[key]

    # What happens to it

    def sweep(self, chance: Random, strike: Strike) -> None:
        """What is due goes, and nothing else; one that dies has taken nothing else either."""
        orphans = chance.choice((None, None, True))
        before, now_s = self.model, self.clock.now
        is_whole = False
        with self._struck(strike), suppress(Crash, OutcomeUnknownError):
            is_whole = self.server.sweep(dry_run=False, orphans=orphans).problems == ()
        self._assert_swept(before, now_s, is_whole=is_whole)
        if strike.kind == "crash" and not is_whole:
            self._restart()

    def refer_amid_a_sweep(self, chance: Random, strike: Strike) -> None:
        """Another process keeps a blob, or has kept it: it stays, unless the sweep was first."""
        self._time_passes(INTERVAL_S)
        before, now_s = self.model, self.clock.now
        due = [key for key in before.live() if before.is_due(key, now_s)]
        keys = due or before.live()
        if not keys:
            return
        key, owner, is_dropped = chance.choice(keys), chance.choice(OWNERS), chance.choice((True, False))
        step = strike.step
        told: list[bool] = []

        def act(point: str) -> None:
            nonlocal step
            step -= 1
            if step < 0 and not told:
                told.append(False)
                told[0] = self._keeps_elsewhere(key, owner, is_dropped=is_dropped)
            self._pass(point)

        FAILPOINTS.observer = act
        try:
            is_whole = self.server.sweep(dry_run=False).problems == ()
        finally:
            FAILPOINTS.observer = self._pass
        if not any(told):
            self._assert_swept(before, now_s, is_whole=is_whole and not told)
            return
        kept = self._seen().blobs.get(key)
        assert kept is not None, "it was kept, and went"
        assert not kept.is_marked
        assert is_dropped or owner in dict(kept.owners)
        others = before.changed(lambda model: model.forget(key))
        self._assert_swept(others, now_s, is_whole=is_whole)

    def time_passes(self, chance: Random, strike: Strike) -> None:
        self._time_passes(chance.choice(PAUSES_S))

    def _time_passes(self, seconds: float) -> None:
        ends_s = self.clock.now + seconds
        while self.clock.now < ends_s:
            self.clock.now = min(ends_s, self.clock.now + AT_LEAST_RENEWED_S)
            self._renew()

    def the_server_is_stopped_and_wakes_up(self, chance: Random, strike: Strike) -> None:
        self.clock.now += chance.choice(SLEEPS_S)

    def the_server_is_killed_and_started_again(self, chance: Random, strike: Strike) -> None:
        self._restart()

    def the_ha_store_goes_or_comes_back(self, chance: Random, strike: Strike) -> None:
        self.ha_is_down = chance.choice((True, False, False))

    # What must hold whatever came before

    @invariant()
    def the_rows_are_the_models(self) -> None:
        seen = self._seen()
        assert seen.blobs == self.model.blobs
        assert seen.final == self.model.final
        assert seen.sets == self.model.sets

    @invariant()
    def what_is_live_is_there_and_hashes_to_its_key(self) -> None:
        for key in self.model.live():
            local, ha = self._copies(key)
            copies = [local] if self.model.blobs[key].guarantee == "recreatable" else [local, ha]
            if key in self.adopted:  # it may have been found in one store alone
                copies = [path for path in copies if path.exists()]
            assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in copies} == {digest_of(key[1])}

    @invariant()
    def what_has_no_row_any_more_has_no_bytes(self) -> None:
        for key in set(self.data) - set(self.model.blobs):
            assert not [path for path in self._copies(key) if path.exists()], key

    @invariant()
    def nothing_is_left_under_way(self) -> None:
        assert list(self.server.local.path.glob(".incoming/*")) == []

    def nothing_stays_that_nobody_keeps(self) -> None:
        """All is well again, and time passes: what is referred to is there, and nothing else."""
        self.ha_is_down = False
        self._restart()
        self.clock.now += HARD_S
        for _ in range(3):
            self.sweep(Random(0), Strike())
            self.clock.now += INTERVAL_S
        self.sweep(Random(0), Strike())
        now_s = self.clock.now
        for blob in self.model.blobs.values():
            is_fresh = blob.staged_s is not None and blob.staged_s + INTERVAL_S > now_s
            assert blob.owners or is_fresh, "nobody keeps it"
        local, ha = self.server.local, self.server.ha
        assert ha is not None
        assert {(one.job_id, one.blob_key) for job in local.jobs() for one in local.blobs(job)} == set(
            self.model.blobs
        )
        of_ha = {key for key, blob in self.model.blobs.items() if blob.guarantee == "ha"}
        assert {(one.job_id, one.blob_key) for one in ha.blobs()} == of_ha
        assert [one for page in ha.open_uploads() for one in page] == []
        assert self.model.sets == {}
        checkpoints = open_checkpoints(Settings(home=self.root / "home"))
        with self.journal.reading() as reading:
            verify(reading, checkpoints).check()

    # How

    def _begin(self) -> None:
        self.journal: Journal = open_journal(self.url, self.name, clock=self.clock)
        store = watched(LocalStore(self.root / "ha"))
        ha = HaBlobs(store, part_bytes=PART_BYTES, parallelism=1)
        self.server = BlobServer(LocalBlobs(self.root / "blobs"), ha, self.journal, clock=self.clock)
        FAILPOINTS.observer = self._pass

    def _restart(self) -> None:
        """Begin as another process, which takes responsibility for what lies there if it can list it."""
        self.server._renewer.close()
        self.journal.close()
        self._begin()
        before = self._seen()
        try:
            staged = recover(self.server)
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
        lapsed = {one for one in self.model.sets if self.clock.now - self.renewed[one] >= HARD_S}
        self.server._renewer.renew()
        held = {resource.removeprefix("upload:") for resource in self.server._renewer._held}
        for upload_set in held & set(self.model.sets):
            assert upload_set not in lapsed
            self.renewed[upload_set] = self.clock.now

    def _pass(self, point: str) -> None:
        if self.ha_is_down and _STORE.fullmatch(point):
            raise StoreUnavailableError(f"{point}: the HA store is down")

    def _assert_swept(self, before: BlobsModel, now_s: float, *, is_whole: bool) -> None:
        """Hold what a sweep has left against the model, which then learns of it.

        Args:
            before: What was there.
            now_s: When it was swept.
            is_whole: The sweep came to its end, and no store was away.
        """
        seen = self._seen()
        self._adopt(seen, now_s)
        lapsed = [one for one in before.sets if now_s - self.renewed[one] >= HARD_S]
        late = before.changed(lambda model: model.lapse(now_s))
        stages = [before, late, late.changed(lambda model: model.abandon(lapsed, now_s))]
        after = stages[-1].changed(lambda model: model.sweep(now_s))
        for key in before.blobs:
            is_due = stages[-1].is_due(key, now_s)
            blob = seen.blobs.get(key)
            if blob is None:
                assert is_due, "a blob went that is not due"
            elif blob.is_marked:
                assert is_due, "a blob is marked that is not due"
            else:
                assert blob in [stage.blobs[key] for stage in stages]
        assert set(before.sets) - set(seen.sets) <= set(lapsed)
        assert seen.final.items() <= before.final.items()
        assert set(before.final) - set(seen.final) <= set(before.final) - set(after.final)
        if is_whole:
            known = {key: blob for key, blob in seen.blobs.items() if key in before.blobs}
            assert (known, seen.final, seen.sets) == (after.blobs, after.final, after.sets)
            for job_id in before.final:
                self._assert_no_bytes_of(job_id)
        self.model = seen

    def _keeps_elsewhere(self, key: Key, owner: str, *, is_dropped: bool) -> bool:
        """Refer to a blob as another process; returns whether it was let."""
        with open_journal(self.url, self.name, clock=self.clock) as journal:
            try:
                journal.apply(TakeReference(job_id=key[0], blob_key=key[1], owner=owner))
            except ObjectNotFoundError:
                return False
            if is_dropped:
                journal.apply(DropReference(job_id=key[0], blob_key=key[1], owner=owner))
        return True

    def _some_key(self, chance: Random) -> Key:
        """Return one that is there, or one that may have gone."""
        return chance.choice([*self.model.blobs, *self.model.blobs, *self.data])

    def _drop(self, key: Key, owner: str, strike: Strike) -> None:
        now_s = self.clock.now
        self._ask(
            lambda model: model.drop(key, owner, now_s),
            lambda: self.server.drop(*key, owner),
            strike,
        )

    @contextmanager
    def _struck(self, strike: Strike) -> Iterator[None]:
        """Let a call be struck."""
        passed = told = 0

        def observe(point: str) -> None:
            nonlocal passed, told
            passed += 1
            if strike.kind == "crash" and passed > strike.step:
                raise Crash(point)
            if point.endswith("journal-write.after"):
                told += 1
                if strike.kind == "deaf" or (strike.kind == "lost" and told == 1 + strike.step % 3):
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
        """Make a call that may be struck, and hold what came of it against the model.

        Args:
            change: What the model makes of it, asked after the call.
            call: What is asked of the server.
            strike: What happens to the call.
            check: What the model says before the call; by default whether it refuses the change.
            needs_ha: It fails while the HA store is down.
            is_done_when_ha_is_down: It fails then, too, and is done nevertheless.

        Returns:
            Whether it was done, and all of it.
        """
        refused: type[LockgateError] | None = None
        try:
            self.model.changed(check or change)
        except Refused as told:
            refused = told.kind
        try:
            with self._struck(strike):
                call()
        except (Crash, OutcomeUnknownError) as error:
            if self._seen() != self.model:
                self._take(change, strike)  # it was done; the invariants compare
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
        """Make a change to the model; a log that was to go at once may be left to the sweep by a fault."""
        after, seen = self.model.changed(change), self._seen()
        for key in set(self.model.blobs) - set(after.blobs):
            left = seen.blobs.get(key)
            if left is not None:
                assert strike.kind != "none"
                assert left.staged_s is not None
                after.blobs[key] = left
        self.model = after

    def _seen(self) -> BlobsModel:
        """Return what the rows say, as the model says it; the server's own sets are nobody's business."""
        with self.journal.reading() as reading:
            blobs, references = reading.where(Blob, {}), reading.where(Reference, {})
            jobs, sets = reading.where(BlobJob, {}), reading.where(UploadSet, {})
        owners: dict[tuple[str, str], list[tuple[str, float | None]]] = {blob.key: [] for blob in blobs}
        for one in references:
            owners[one.job_id, one.blob_key].append((one.owner, one.until_s))
        return BlobsModel(
            {
                (blob.job_id, BlobKey(blob.blob_key)): KnownBlob(
                    blob.guarantee,
                    blob.upload_set,
                    blob.staged_s,
                    blob.deleting_s is not None,
                    tuple(sorted(owners[blob.key])),
                    is_log=blob.use == "log",
                )
                for blob in blobs
            },
            {job.job_id: job.final_s for job in jobs if job.final_s is not None},
            {one.upload_set: one.job_id for one in sets if one.job_id},
        )

    def _adopt(self, seen: BlobsModel, now_s: float) -> None:
        """Learn of bytes that no row knew and a listing found: whole, and staged."""
        for key in set(seen.blobs) - set(self.model.blobs):
            assert seen.blobs[key] == KnownBlob("ha", "", now_s, is_marked=False)
            self.adopted.add(key)
            copies = [path for path in self._copies(key) if path.exists()]
            assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in copies} == {digest_of(key[1])}
            self.data[key] = copies[0].read_bytes()

    def _copies(self, key: Key) -> list[Path]:
        return [self.server.local.path_of(*key), self.root / "ha" / key[0] / key[1]]

    def _assert_no_bytes_of(self, job_id: str) -> None:
        for store in ("blobs", "ha"):
            assert not list((self.root / store / job_id).glob("*")), f"{job_id} has ended"


def _own_set_had_lapsed(error: LockgateError) -> bool:
    """The server was stopped for so long that its own set was given up: the next put opens another."""
    return isinstance(error, StoreUnavailableError) and "had lapsed" in str(error)

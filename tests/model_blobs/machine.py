"""A blob server in any order of calls, deaths, outages and time, held against the model."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage_core.blobs.ha import HaBlobs
from storage_core.blobs.keys import NO_JOB, BlobKey, UploadSetId, digest_of
from storage_core.blobs.local import LocalBlobs
from storage_core.blobs.recovery import recover
from storage_core.blobs.server import BlobServer
from storage_core.errors import (
    FencedError,
    LockgateError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from storage_core.failpoints import FAILPOINTS
from storage_core.journal import Journal, open_journal
from storage_core.journal.checkpoint import open_checkpoints
from storage_core.journal.rows import Blob, BlobJob, Guarantee, Reference, UploadSet
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

T = TypeVar("T")

jobs = st.sampled_from((NO_JOB, "sales", "stock"))
ending_jobs = st.sampled_from(("sales", "stock"))
owners = st.sampled_from(("job", "attempt:1", "receiver:1", "viewer:1"))
lapses = st.sampled_from((None, None, 100.0, INTERVAL_S))
sizes = st.sampled_from((0, 10, 2 * PART_BYTES + 500))
guarantees = st.sampled_from(("ha", "recreatable"))
picks = st.integers(0, 1_000)
faults = st.sampled_from(("none", "none", "none", "crash", "lost", "deaf"))
steps = st.integers(0, 25)


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

    # What clients ask

    @rule(
        job_id=jobs,
        size=sizes,
        guarantee=guarantees,
        owner=owners,
        lapse_s=lapses,
        kind=picks,
        pick=picks,
        fault=faults,
        step=steps,
    )
    def put(
        self,
        *,
        job_id: str,
        size: int,
        guarantee: Guarantee,
        owner: str,
        lapse_s: float | None,
        kind: int,
        pick: int,
        fault: str,
        step: int,
    ) -> None:
        """One that nothing keeps, one that an owner keeps, or one of a set that may be closed meanwhile."""
        opened = ("", "", *self.renewed)
        upload_set = opened[pick % len(opened)]
        keeps = [owner] if kind % 3 else []
        data = bytes([len(self.data) % 251]) * size
        before = set(self.model.blobs)

        def call() -> None:
            self.server.put(
                data,
                job_id=job_id,
                guarantee=guarantee,
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
            blob = KnownBlob(guarantee, upload_set, None if is_kept else self.clock.now, is_marked=False)
            model.blobs[key] = blob.with_owner(owner, until_s) if keeps else blob
            self.data[key] = data

        self._ask(
            change,
            call,
            fault,
            step,
            check=lambda model: model.check_put(job_id, upload_set),
            needs_ha=guarantee == "ha",
        )

    @rule(job_id=ending_jobs)
    def begin_set(self, job_id: str) -> None:
        try:
            upload_set = self.server.begin_set(job_id)
        except FencedError:
            assert job_id in self.model.final
        else:
            self.model.begin(upload_set, job_id)
            self.renewed[upload_set] = self.clock.now

    @precondition(lambda self: self.renewed)
    @rule(pick=picks, fault=faults, step=steps)
    def complete_set(self, pick: int, fault: str, step: int) -> None:
        upload_set = _pick(self.renewed, pick)
        now_s = self.clock.now
        self._ask(
            lambda model: model.complete(upload_set, now_s),
            lambda: self.server.complete_set(UploadSetId(upload_set)),
            fault,
            step,
        )

    @precondition(lambda self: self.data)
    @rule(pick=picks, several=st.integers(0, 3), fault=faults, step=steps)
    def submit(self, pick: int, several: int, fault: str, step: int) -> None:
        """A job with some of its blobs; any of them may be gone."""
        job_id = _pick(self.data, pick)[0]
        keys = [key for key in self.data if key[0] == job_id][-several:]
        self._ask(
            lambda model: model.submit(job_id, keys),
            lambda: self.server.submit(job_id, [key for _, key in keys]),
            fault,
            step,
        )

    @precondition(lambda self: self.data)
    @rule(pick=picks, owner=owners, lapse_s=lapses, fault=faults, step=steps)
    def refer(self, pick: int, owner: str, lapse_s: float | None, fault: str, step: int) -> None:
        """To a blob that is kept, is staged, or went long ago."""
        key = _pick(self.data, pick)
        until_s = None if lapse_s is None else self.clock.now + lapse_s
        self._ask(
            lambda model: model.refer(key, owner, until_s),
            lambda: self.server.refer(*key, owner, lapse_s=lapse_s),
            fault,
            step,
        )

    @precondition(lambda self: self.data)
    @rule(pick=picks, owner=owners, fault=faults, step=steps)
    def drop(self, pick: int, owner: str, fault: str, step: int) -> None:
        key, now_s = _pick(self.data, pick), self.clock.now
        self._ask(
            lambda model: model.drop(key, owner, now_s),
            lambda: self.server.drop(*key, owner),
            fault,
            step,
        )

    @rule(owner=owners, fault=faults, step=steps)
    def drop_owner(self, owner: str, fault: str, step: int) -> None:
        now_s = self.clock.now
        self._ask(
            lambda model: model.drop_owner(owner, now_s),
            lambda: self.server.drop_owner(owner),
            fault,
            step,
        )

    @rule(job_id=ending_jobs, fault=faults, step=steps)
    def fail(self, job_id: str, fault: str, step: int) -> None:
        now_s = self.clock.now
        self._ask(lambda model: model.fail(job_id, now_s), lambda: self.server.fail(job_id), fault, step)

    @rule(job_id=ending_jobs, fault=faults, step=steps)
    def finish(self, job_id: str, fault: str, step: int) -> None:
        now_s = self.clock.now
        is_whole = self._ask(
            lambda model: model.finish(job_id, now_s),
            lambda: self.server.finish(job_id),
            fault,
            step,
            is_done_when_ha_is_down=True,
        )
        if is_whole:
            self._assert_no_bytes_of(job_id)

    @precondition(lambda self: self.model.live())
    @rule(pick=picks)
    def get(self, pick: int) -> None:
        key = _pick(self.model.live(), pick)
        assert self.server.get(*key) == self.data[key]

    # What happens to it

    @rule(fault=faults, step=steps, orphans=st.sampled_from((None, None, True)))
    def sweep(self, fault: str, step: int, orphans: bool | None) -> None:
        """What is due goes, and nothing else; one that dies has taken nothing else either."""
        before, now_s = self.model, self.clock.now
        lapsed = [one for one in before.sets if now_s - self.renewed[one] >= HARD_S]
        is_whole = False
        with self._fault(fault, step), suppress(Crash, OutcomeUnknownError):
            is_whole = self.server.sweep(dry_run=False, orphans=orphans).problems == ()
        seen = self._seen()
        self._adopt(seen, now_s)
        after = before.changed(lambda model: model.lapse(now_s))
        stages = [before, after, after.changed(lambda model: model.abandon(lapsed, now_s))]
        after = stages[-1].changed(lambda model: model.sweep(now_s))
        if is_whole:
            known = {key: blob for key, blob in seen.blobs.items() if key in before.blobs}
            assert (known, seen.final, seen.sets) == (after.blobs, after.final, after.sets)
            for job_id in before.final:
                self._assert_no_bytes_of(job_id)
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
        assert set(before.final) - set(seen.final) <= set(before.final) - set(after.final)
        assert seen.final.items() <= before.final.items()
        self.model = seen
        if fault == "crash" and not is_whole:
            self._restart()

    @rule(seconds=st.sampled_from((1.0, AT_LEAST_RENEWED_S, INTERVAL_S / 2, INTERVAL_S)))
    def time_passes(self, seconds: float) -> None:
        ends_s = self.clock.now + seconds
        while self.clock.now < ends_s:
            self.clock.now = min(ends_s, self.clock.now + AT_LEAST_RENEWED_S)
            self._renew()

    @rule(seconds=st.sampled_from((HARD_S - 1, HARD_S, INTERVAL_S)))
    def the_server_is_stopped_and_wakes_up(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def the_server_is_killed_and_started_again(self) -> None:
        self._restart()

    @precondition(lambda self: not self.ha_is_down)
    @rule()
    def a_server_that_starts_recovers(self) -> None:
        self._restart()
        before = set(self._seen().blobs)
        staged = recover(self.server)
        seen = self._seen()
        assert staged.blobs == len(set(seen.blobs) - before)
        self._adopt(seen, self.clock.now)
        self.model = seen

    @rule(is_down=st.booleans())
    def the_ha_store_goes_or_comes_back(self, is_down: bool) -> None:
        self.ha_is_down = is_down

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
    def nothing_is_left_under_way(self) -> None:
        assert list(self.server.local.path.glob(".incoming/*")) == []

    def nothing_stays_that_nobody_keeps(self) -> None:
        """All is well again, and time passes: what is referred to is there, and nothing else."""
        self.ha_is_down = False
        self._restart()
        self.clock.now += HARD_S
        for _ in range(3):
            self.sweep("none", 0, None)
            self.clock.now += INTERVAL_S
        self.sweep("none", 0, None)
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
        """Begin as another process: the old one renews nothing any more."""
        self.server._renewer.close()
        self.journal.close()
        self._begin()

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

    @contextmanager
    def _fault(self, fault: str, step: int) -> Iterator[None]:
        """Let a call be struck: by a death at a step, by answers of the journal that are lost."""
        passed = 0

        def observe(point: str) -> None:
            nonlocal passed
            passed += 1
            if fault == "crash" and passed > step:
                raise Crash(point)
            is_told = point.endswith("journal-write.after")
            if is_told and (fault == "deaf" or (fault == "lost" and passed <= step)):
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
        fault: str,
        step: int,
        *,
        check: Callable[[BlobsModel], None] | None = None,
        needs_ha: bool = False,
        is_done_when_ha_is_down: bool = False,
    ) -> bool:
        """Make a call that may be struck, and hold what came of it against the model.

        Args:
            change: What the model makes of it, asked after the call.
            call: What is asked of the server.
            fault: That strikes.
            step: When.
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
            with self._fault(fault, step):
                call()
        except (Crash, OutcomeUnknownError) as error:
            if self._seen() != self.model:
                self.model = self.model.changed(change)  # it was done; the invariants compare
            if isinstance(error, Crash):
                self._restart()
            return False
        except LockgateError as error:
            if self.ha_is_down and isinstance(error, StoreUnavailableError) and is_done_when_ha_is_down:
                self.model = self.model.changed(change)
            elif not (
                (refused is not None and isinstance(error, refused))
                or (self.ha_is_down and needs_ha and isinstance(error, StoreUnavailableError))
                or _own_set_had_lapsed(error)
            ):
                raise
            return False
        assert refused is None, "the model refuses it"
        self.model = self.model.changed(change)
        return True

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


def _pick(items: Iterable[T], number: int) -> T:
    found = list(items)
    return found[number % len(found)]


def _own_set_had_lapsed(error: LockgateError) -> bool:
    """The server was stopped for so long that its own set was given up: the next put opens another."""
    return isinstance(error, StoreUnavailableError) and "had lapsed" in str(error)

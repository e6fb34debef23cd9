"""Compare a blob server with the model under calls, deaths, outages and time in any order."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from random import Random
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from lockgate.storage_core.blobs.keys import NO_JOB, UploadSetId, digest_of, new_upload_set
from lockgate.storage_core.blobs.registry.blob_rows import BlobUse, Guarantee
from lockgate.storage_core.blobs.reports import Copy, Fault
from lockgate.storage_core.errors import FencedError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.journal.checkpoint.checkpoints import open_checkpoints
from lockgate.storage_core.journal.checkpoint.verify import verify
from lockgate.storage_core.settings import load_settings
from tests.model.blobs.harness import AT_LEAST_RENEWED_S, PART_BYTES, BlobServerUnderTest, Strike
from tests.model.blobs.model import HARD_S, INTERVAL_S, BlobsModel, KnownBlob
from tests.support.commit.destination import Crash

JOBS: Final = (NO_JOB, "sales", "stock")
ENDING_JOBS: Final = ("sales", "stock")
OWNERS: Final = ("job", "receiver:1", "viewer:1")
LAPSES: Final = (None, None, None, 100.0, INTERVAL_S)
SIZES: Final = (0, 10, 10, 2 * PART_BYTES + 500)
GUARANTEES: Final[tuple[Guarantee, ...]] = ("ha", "ha", "recreatable")
USES: Final[tuple[BlobUse, ...]] = ("library", "message", "log")
PAUSES_S: Final = (1.0, AT_LEAST_RENEWED_S, INTERVAL_S / 2, INTERVAL_S)
SLEEPS_S: Final = (HARD_S - 1, HARD_S, INTERVAL_S)
MATCHING: Final = 0.8
"""Of the puts into a set, those that are for the set's own job; another's are refused."""
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
    "refer_during_a_sweep": 4,
    "time_passes": 7,
    "the_clock_jumps": 2,
    "the_server_is_stopped_and_wakes_up": 1,
    "the_server_is_killed_and_started_again": 1,
    "the_ha_store_goes_or_comes_back": 1,
}
"""How often each happens, of all that may."""

happenings = st.sampled_from([name for name, weight in WEIGHTS.items() for _ in range(weight)])
faults = st.sampled_from(("none", "none", "none", "crash", "lost", "deaf"))


class BlobsMachine(BlobServerUnderTest):
    """Calls of clients to one server, and faults of the server."""

    def teardown(self) -> None:
        FAILPOINTS.observer = None
        try:
            self.every_live_blob_has_an_owner()
        finally:
            self.server.sets.renewer.close()
            self.journal.close()
            shutil.rmtree(self.root, ignore_errors=True)

    @rule(what=happenings, seed=st.integers(0, 2**32), fault=faults, step=st.integers(0, 30))
    def something_happens(self, what: str, seed: int, fault: str, step: int) -> None:
        """This is one rule for all steps: with many rules, each example would leave out most of them."""
        getattr(self, what)(Random(seed), Strike(fault, step))

    # Calls of clients

    def put(self, chance: Random, strike: Strike) -> None:
        """Put an unreferenced blob, one with an owner, or one of a set that may be closed meanwhile."""
        job_id, size, owner = chance.choice(JOBS), chance.choice(SIZES), chance.choice(OWNERS)
        guarantee, use, lapse_s = chance.choice(GUARANTEES), chance.choice(USES), chance.choice(LAPSES)
        upload_set = chance.choice(["", *self.model.sets, *self.model.sets, *self.renewed])
        if chance.random() < MATCHING:
            job_id = self.model.sets.get(upload_set, job_id)
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
        """Submit a job with some of its blobs, any of which may be deleted."""
        if not self.data:
            return
        job_id = self._some_key(chance)[0]
        if job_id == NO_JOB:  # it is not a job and is refused
            return
        keys = [key for key in self.data if key[0] == job_id][-chance.randint(1, 3) :]
        self._ask(
            lambda model: model.submit(job_id, keys),
            lambda: self.server.submit(job_id, [key for _, key in keys]),
            strike,
        )

    def refer(self, chance: Random, strike: Strike) -> None:
        """Refer to a blob that is kept, staged or deleted."""
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
        """Drop a reference that may not exist."""
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

    # Faults of the server

    def sweep(self, chance: Random, strike: Strike) -> None:
        """A sweep deletes only blobs that are due, even if it dies."""
        orphans = chance.choice((None, None, True))
        before, now_s = self.model, self.clock.now
        is_whole = False
        with self._injected(strike), suppress(Crash, OutcomeUnknownError):
            is_whole = self.server.sweep(dry_run=False, orphans=orphans).problems == ()
        self._assert_swept(before, now_s, is_whole=is_whole)
        if strike.kind == "crash" and not is_whole:
            self._restart()

    def refer_during_a_sweep(self, chance: Random, strike: Strike) -> None:
        """Another process refers to a blob during a sweep: it stays unless the sweep was first."""
        self._time_passes(INTERVAL_S)
        before, now_s = self.model, self.clock.now
        due = [key for key in before.live() if before.is_due(key, now_s)]
        keys = due or before.live()
        if not keys:
            return
        key, owner, is_dropped = chance.choice(keys), chance.choice(OWNERS), chance.choice((True, False))
        step = strike.step
        was_kept: list[bool] = []

        def act(point: str) -> None:
            nonlocal step
            step -= 1
            if step < 0 and not was_kept:
                was_kept.append(False)
                was_kept[0] = self._keeps_elsewhere(key, owner, is_dropped=is_dropped)
            self._pass(point)

        FAILPOINTS.observer = act
        try:
            is_whole = self.server.sweep(dry_run=False).problems == ()
        finally:
            FAILPOINTS.observer = self._pass
        if not any(was_kept):
            self._assert_swept(before, now_s, is_whole=is_whole and not was_kept)
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

    def the_clock_jumps(self, chance: Random, strike: Strike) -> None:
        """The wall clock is set by the time after which a set may be given up, and later set right again."""
        self.clock.jump(-HARD_S if self.clock.jumped_s > 0 else HARD_S)

    def the_server_is_stopped_and_wakes_up(self, chance: Random, strike: Strike) -> None:
        self.clock.now += chance.choice(SLEEPS_S)

    def the_server_is_killed_and_started_again(self, chance: Random, strike: Strike) -> None:
        self._restart()

    def the_ha_store_goes_or_comes_back(self, chance: Random, strike: Strike) -> None:
        self.ha_is_down = chance.choice((True, False, False))

    # Invariants

    @invariant()
    def the_rows_are_the_models(self) -> None:
        seen = self._seen()
        assert seen.blobs == self.model.blobs
        assert seen.final == self.model.final
        assert seen.sets == self.model.sets
        assert seen.lost == set(), "a blob went, and something refers to it"

    @invariant()
    def what_is_live_is_there_and_hashes_to_its_key(self) -> None:
        for key in self.model.live():
            local, ha = self._copies(key)
            copies = [local] if self.model.blobs[key].guarantee == "recreatable" else [local, ha]
            if key in self.adopted:  # it may have been found in one store only
                copies = [path for path in copies if path.exists()]
            assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in copies} == {digest_of(key[1])}

    @invariant()
    def what_has_no_row_any_more_has_no_bytes(self) -> None:
        for key in set(self.data) - set(self.model.blobs):
            assert not [path for path in self._copies(key) if path.exists()], key

    @invariant()
    def nothing_is_left_under_way(self) -> None:
        assert list(self.server.stores.local.path.glob(".incoming/*")) == []

    def every_live_blob_has_an_owner(self) -> None:
        """After all faults are repaired and time has passed, exactly the referenced blobs exist."""
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
            assert blob.owners or is_fresh, "no owner references it"
        self._heal_adopted_blobs()
        local, ha = self.server.stores.local, self.server.stores.ha
        assert ha is not None
        assert {(one.job_id, one.blob_key) for job in local.jobs() for one in local.blobs(job)} == set(
            self.model.blobs
        )
        of_ha = {key for key, blob in self.model.blobs.items() if blob.guarantee == "ha"}
        may_lack = {key for key in self.adopted & of_ha if self.model.blobs[key].staged_s is not None}
        in_ha = {(one.job_id, one.blob_key) for one in ha.blobs()}
        assert of_ha - may_lack <= in_ha <= of_ha
        assert [one for page in ha.open_uploads() for one in page] == []
        assert self.model.sets == {}
        assert self.model.final == {}
        checkpoints = open_checkpoints(load_settings(home=self.root / "home"))
        with self.journal.reading() as reading:
            verify(reading, checkpoints).check()

    def _heal_adopted_blobs(self) -> None:
        """Verify and heal: only an adopted blob that is referenced may lack its HA copy, and gets it."""
        page = self.server.verify(heal=True)
        assert page.blobs == len(self.model.blobs)
        for finding in page.findings:
            assert (finding.job_id, finding.blob_key) in self.adopted
            assert finding.faults == {Copy.HA: Fault.MISSING}
            assert finding.is_healed

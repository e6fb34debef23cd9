"""Guarantees of every store for its pending uploads."""

from __future__ import annotations

from contextlib import suppress
from threading import Semaphore

import msgspec
import pytest

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    UploadGoneError,
)
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import Part, Store
from tests.contract.stores_calls import RACERS, keys, open_uploads, race, upload

# moto answers 500 where S3 answers NoSuchUpload (see `differences`). The caller then calls `holds`, which
# must be right in both cases.
GONE = (UploadGoneError, OutcomeUnknownError)


@pytest.fixture
def part_bytes(store: Store) -> int:
    return max(store.capabilities.min_part_bytes, 64 * 1024)


class TestUploads:
    @pytest.mark.parametrize("extra", [None, -1, 0, 1])
    def test_a_file_of_any_size_is_complete_after_its_completion(
        self, store: Store, part_bytes: int, extra: int | None
    ) -> None:
        data = b"" if extra is None else (b"0123456789abcdef" * (part_bytes // 16 + 1))[: part_bytes + extra]
        chunks = [data[at : at + part_bytes] for at in range(0, len(data), part_bytes)] or [b""]

        pending = upload(store, "day=1/p.parquet", *chunks)
        made = store.complete_upload(pending)

        assert pending.size == made.size == store.head("day=1/p.parquet").size == len(data)
        assert store.get("day=1/p.parquet") == data
        assert store.head("day=1/p.parquet").version == made.version

    def test_a_file_of_one_byte_is_complete_after_its_completion(self, store: Store) -> None:
        store.complete_upload(upload(store, "a", b"x"))

        assert store.get("a") == b"x"

    def test_an_upload_is_invisible_before_it_is_completed(self, store: Store) -> None:
        pending = upload(store, "day=1/p.parquet", b"data")

        assert keys(store) == []
        assert open_uploads(store) == ["day=1/p.parquet"]
        assert not store.holds(pending)
        with pytest.raises(ObjectNotFoundError):
            store.head("day=1/p.parquet")

        store.complete_upload(pending)
        assert keys(store) == ["day=1/p.parquet"]
        assert open_uploads(store) == []
        assert store.holds(pending)

    def test_parts_can_be_uploaded_in_parallel_and_in_any_order(self, store: Store, part_bytes: int) -> None:
        token = new_token()
        upload_id = store.begin_upload("a", token)
        chunks = [b"1" * part_bytes, b"2" * part_bytes, b"3"]
        parts = race(
            [lambda n=n: store.put_part("a", upload_id, n + 1, n * part_bytes, chunks[n]) for n in (2, 0, 1)]
        )
        store.complete_upload(store.seal_upload("a", upload_id, token, parts))

        assert store.get("a") == b"".join(chunks)

    def test_a_part_that_is_written_again_replaces_the_first_one(self, store: Store, part_bytes: int) -> None:
        token = new_token()
        upload_id = store.begin_upload("a", token)
        store.put_part("a", upload_id, 1, 0, b"x" * part_bytes)
        store.put_part("a", upload_id, 2, part_bytes, b"a longer last part")
        first = store.put_part("a", upload_id, 1, 0, b"y" * part_bytes)
        last = store.put_part("a", upload_id, 2, part_bytes, b"short")
        pending = store.seal_upload("a", upload_id, token, [last, first])
        store.complete_upload(pending)

        assert store.get("a") == b"y" * part_bytes + b"short"
        assert pending.parts == (first, last)

    def test_parts_can_be_copied_from_ranges_of_objects(self, store: Store, part_bytes: int) -> None:
        source = "día=1/100%25 a+b"
        store.put(source, b"head" + b"y" * part_bytes + b"tail")
        token = new_token()
        upload_id = store.begin_upload("a", token)
        parts = [
            store.put_part("a", upload_id, 1, 0, b"x" * part_bytes),
            store.copy_part("a", upload_id, 2, part_bytes, source=source, start=4, length=part_bytes),
            store.copy_part("a", upload_id, 3, 2 * part_bytes, source=source, start=2, length=2),
        ]
        store.complete_upload(store.seal_upload("a", upload_id, token, parts))

        assert store.get("a") == b"x" * part_bytes + b"y" * part_bytes + b"ad"

    def test_a_part_of_a_missing_object_cannot_be_copied(self, store: Store, kind: str) -> None:
        token = new_token()
        # moto does not say what is missing; its 404 could be a proxy's.
        with pytest.raises(OutcomeUnknownError if kind == "moto" else ObjectNotFoundError):
            store.copy_part("b", store.begin_upload("b", token), 1, 0, source="missing", start=0, length=1)

    @pytest.mark.parametrize("numbers", [[], [2], [1, 3], [1, 1]])
    def test_parts_with_a_gap_are_not_sealed(self, store: Store, numbers: list[int]) -> None:
        upload_id = store.begin_upload("a", new_token())
        parts = [Part(number=number, size=1, etag='"0"') for number in numbers]

        with pytest.raises(InvalidInputError, match="without a gap"):
            store.seal_upload("a", upload_id, new_token(), parts)

    @pytest.mark.parametrize("number", [0, -1, 10_001])
    def test_a_part_number_out_of_range_is_refused(self, store: Store, number: int) -> None:
        upload_id = store.begin_upload("a", new_token())

        with pytest.raises(InvalidInputError, match="10000"):
            store.put_part("a", upload_id, number, 0, b"x")

    def test_completion_replaces_a_foreign_object_unless_if_absent_is_set(self, store: Store) -> None:
        store.put("a", b"foreign")
        pending = upload(store, "a", b"ours")
        assert not store.holds(pending)

        with pytest.raises(AlreadyExistsError):
            store.complete_upload(pending, if_absent=True)
        assert store.get("a") == b"foreign"
        assert open_uploads(store) == ["a"]

        store.complete_upload(pending)
        assert store.get("a") == b"ours"
        assert store.holds(pending)
        assert open_uploads(store) == []

    def test_completions_that_are_sent_ahead_end_as_those_that_are_waited_for(
        self, store: Store, kind: str, s3_client: str
    ) -> None:
        sender = store.completion_sender()
        if sender is None:
            assert kind == "local" or s3_client == "boto3"
            return
        pendings = [upload(store, f"day=1/{number}", b"%d" % number) for number in range(4)]
        gone = upload(store, "day=1/gone", b"gone")
        store.abort_upload("day=1/gone", gone.upload_id)
        store.put("day=1/taken", b"foreign")
        taken = upload(store, "day=1/taken", b"ours")
        arrived = Semaphore(0)

        ends = [sender.send(pending, if_absent=False, arrived=arrived.release) for pending in pendings]
        lost = sender.send(gone, if_absent=False, arrived=arrived.release)
        refused = sender.send(taken, if_absent=True, arrived=arrived.release)

        for _ in range(len(pendings) + 2):
            assert arrived.acquire(timeout=30)
        assert [end().version for end in ends] == [store.head(pending.key).version for pending in pendings]
        assert all(store.holds(pending) for pending in pendings)
        with pytest.raises(GONE):
            lost()
        with pytest.raises(AlreadyExistsError):
            refused()
        assert store.get("day=1/taken") == b"foreign"

    def test_exactly_one_of_sixteen_conditional_completions_wins(self, store: Store) -> None:
        pendings = [upload(store, "day=1/a", b"%d" % me) for me in range(RACERS)]

        answers = race([lambda p=p: store.complete_upload(p, if_absent=True) for p in pendings])

        winners = [me for me, answer in enumerate(answers) if not isinstance(answer, Exception)]
        assert len(winners) == 1
        assert store.get("day=1/a") == b"%d" % winners[0]
        assert [me for me in range(RACERS) if store.holds(pendings[me])] == winners
        assert len(open_uploads(store)) == RACERS - 1

    def test_concurrent_completions_of_one_upload_leave_it_complete(self, store: Store) -> None:
        pending = upload(store, "day=1/a", b"data")

        answers = race([lambda: store.complete_upload(pending) for _ in range(8)])

        assert any(not isinstance(answer, Exception) for answer in answers)
        assert all(isinstance(answer, GONE) for answer in answers if isinstance(answer, Exception))
        assert store.holds(pending)
        assert store.get("day=1/a") == b"data"
        assert open_uploads(store) == []

    def test_a_completion_whose_answer_was_lost_is_recognised(self, store: Store) -> None:
        pending = upload(store, "a", b"data")
        FAILPOINTS.arm({"complete.complete.after": "lost"})
        try:
            with step("complete"), pytest.raises(OutcomeUnknownError):
                store.complete_upload(pending)
        finally:
            FAILPOINTS.arm({})

        assert store.holds(pending)
        assert store.get("a") == b"data"

    def test_an_upload_is_not_recognised_in_an_object_of_equal_bytes(self, store: Store) -> None:
        pending, twin = upload(store, "a", b"data"), upload(store, "a", b"data")
        store.complete_upload(twin)
        assert store.holds(twin)
        assert not store.holds(pending)

        store.put("a", b"data")
        assert not store.holds(twin)

        store.delete("a")
        assert not store.holds(twin)

    def test_an_aborted_upload_cannot_be_completed(self, store: Store) -> None:
        pending = upload(store, "a", b"data")
        store.abort_upload(pending.key, pending.upload_id)
        store.abort_upload(pending.key, pending.upload_id)

        assert open_uploads(store) == []
        with pytest.raises(GONE):
            store.complete_upload(pending)
        with pytest.raises(GONE):
            store.put_part(pending.key, pending.upload_id, 1, 0, b"late")
        assert not store.holds(pending)
        assert keys(store) == []

    def test_an_aborted_upload_never_replaces_the_object_at_its_key(self, store: Store) -> None:
        store.put("a", b"stays")
        pending = upload(store, "a", b"data")
        store.abort_upload(pending.key, pending.upload_id)

        # One real server reports success for this completion: only `holds` is reliable.
        with suppress(*GONE):
            store.complete_upload(pending)
        assert not store.holds(pending)
        assert store.get("a") == b"stays"

    def test_aborting_a_completed_upload_leaves_its_object(self, store: Store) -> None:
        pending = upload(store, "a", b"data")
        store.complete_upload(pending)
        store.abort_upload(pending.key, pending.upload_id)

        assert store.get("a") == b"data"
        assert store.holds(pending)

    def test_the_size_of_an_open_upload_grows_with_each_part(self, store: Store, part_bytes: int) -> None:
        upload_id = store.begin_upload("a", new_token())
        assert store.upload_bytes("a", upload_id) == 0
        store.put_part("a", upload_id, 1, 0, b"x" * part_bytes)
        assert store.upload_bytes("a", upload_id) == part_bytes
        store.put_part("a", upload_id, 2, part_bytes, b"last")
        assert store.upload_bytes("a", upload_id) == part_bytes + 4

    def test_an_upload_that_is_not_open_has_no_size(self, store: Store) -> None:
        completed, aborted = upload(store, "a", b"data"), upload(store, "b", b"data")
        store.complete_upload(completed)
        store.abort_upload(aborted.key, aborted.upload_id)

        for pending in (completed, aborted):
            with pytest.raises(UploadGoneError):
                store.upload_bytes(pending.key, pending.upload_id)

    @pytest.mark.parametrize("upload_id", ["nonsense", "0" * 32, "../../a", "~x"])
    def test_an_unknown_upload_id_counts_as_already_aborted(self, store: Store, upload_id: str) -> None:
        pending = msgspec.structs.replace(upload(store, "a", b"data"), upload_id=upload_id)

        store.abort_upload("a", upload_id)
        with pytest.raises(GONE):
            store.complete_upload(pending)
        assert keys(store) == []
        assert open_uploads(store) == ["a"]

    def test_open_uploads_are_listed_by_prefix_in_the_order_of_their_keys(self, store: Store) -> None:
        names = ["dataset1/a", "dataset1/a-b", "dataset1/a/b", "dataset1/b", "dataset10/a", "z"]
        ids = {
            name: {upload(store, name, b"x").upload_id, upload(store, name, b"x").upload_id} for name in names
        }

        listed = [found for page in store.upload_pages(page_size=5) for found in page]
        assert [len(page) for page in store.upload_pages(page_size=5)] == [5, 5, 2]
        assert [found.key for found in listed] == sorted([*names, *names], key=str.encode)
        assert {name: {f.upload_id for f in listed if f.key == name} for name in names} == ids
        assert set(open_uploads(store, "dataset1/")) == set(names[:4])
        assert set(open_uploads(store, "dataset1/a")) == set(names[:3])
        assert open_uploads(store, "nothing") == []

    @pytest.mark.parametrize("after", ["", "a/", "a/b", "a/b0", "a/é", "b", "c"])
    def test_open_uploads_are_listed_behind_a_key(self, store: Store, after: str) -> None:
        names = ["a/a", "a/b", "a/b", "a/b-1", "a/é", "b"]
        for name in names:
            upload(store, name, b"x")

        behind = [name for name in names if name.encode() > after.encode()]
        for page_size in (1, 2, 1000):
            pages = list(store.upload_pages(after=after, page_size=page_size))
            assert [found.key for page in pages for found in page] == behind
        below = [found.key for page in store.upload_pages("a/b", after=after) for found in page]
        assert below == [name for name in behind if name.startswith("a/b")]

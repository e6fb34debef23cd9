"""Guarantees of every store for its objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import pytest

from lockgate.storage_core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from lockgate.storage_core.failpoints import FAILPOINTS, step
from lockgate.storage_core.ids import new_token
from lockgate.storage_core.stores import Store
from lockgate.storage_core.stores.instrumented import InstrumentedStore
from lockgate.storage_core.stores.probe import probe, with_capabilities
from tests.contract.stores_calls import RACERS, keys, open_uploads, race, upload
from tests.support.soak import rounds

STRANGE_KEYS = [
    "a b/c  d.parquet",
    "día=1/naïve-Ω-数据.parquet",
    "percent%/100%25.parquet",
    "a%2Fb",
    "day=2026-11-21/hour=07/x=y=z",
    "plus+and&ampersand;semicolon",
    "quotes'\"<>#",
    "_hidden/.dot/~tilde",
]


class TestObjects:
    def test_an_object_is_read_back_with_its_size_and_version(self, store: Store) -> None:
        made = store.put("a/b.txt", b"hello")

        found = store.head("a/b.txt")
        assert store.get("a/b.txt") == b"hello"
        assert (found.key, found.size, found.version) == ("a/b.txt", 5, made.version)
        assert abs(found.modified_s - time.time()) < 60

    def test_a_put_replaces_content_and_version(self, store: Store) -> None:
        first = store.put("a", b"first")
        second = store.put("a", b"other")

        assert store.get("a") == b"other"
        assert first.version != second.version

    def test_ranges_are_cut_at_the_end_of_the_object(self, store: Store) -> None:
        store.put("a", b"0123456789")

        assert store.get("a", start=2, length=3) == b"234"
        assert store.get("a", start=8) == b"89"
        assert store.get("a", start=8, length=100) == b"89"
        assert store.get("a", start=10) == b""
        assert store.get("a", start=99, length=1) == b""
        assert store.get("a", length=0) == b""

    def test_an_empty_object_exists(self, store: Store) -> None:
        store.create("empty", b"")

        assert store.head("empty").size == 0
        assert store.get("empty") == b""
        assert keys(store) == ["empty"]

    @pytest.mark.parametrize("call", ["get", "head"])
    def test_reading_a_missing_object_raises_not_found(self, store: Store, call: str) -> None:
        store.put("folder/object", b"")

        for absent in ("nothing", "folder", "folder/nothing", "folder/object/below"):
            with pytest.raises(ObjectNotFoundError, match=absent):
                getattr(store, call)(absent)

    @pytest.mark.parametrize("key", STRANGE_KEYS)
    def test_an_unusual_name_is_taken_literally(self, store: Store, key: str) -> None:
        store.create(key, key.encode())

        assert keys(store) == [key]
        assert store.get(key) == key.encode()
        assert store.head(key).size == len(key.encode())
        assert store.delete_many([key]) == []
        assert keys(store) == []

    def test_a_name_of_900_bytes_is_accepted(self, store: Store) -> None:
        key = "/".join("é" * 90 for _ in range(5))
        assert len(key.encode()) > 900

        pending = upload(store, key, b"data")
        assert open_uploads(store) == [key]
        store.complete_upload(pending)

        assert keys(store) == [key]
        assert store.get(key) == b"data"

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "a\\b", "a\nb", "e\u0301", "a\ufffeb", "\uffff"],
    )
    def test_a_name_that_could_leave_the_destination_is_refused(self, store: Store, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.put(key, b""),
            lambda: store.create(key, b""),
            lambda: store.get(key),
            lambda: store.head(key),
            lambda: store.begin_upload(key, new_token()),
        ]
        if not {"", ".", ".."}.isdisjoint(key.split("/")):
            # Other programs' files and uploads with the other names can be deleted.
            calls += [lambda: store.delete(key), lambda: store.abort_upload(key, "0" * 32)]
        for call in calls:
            with pytest.raises(InvalidInputError):
                call()
        assert [left.key for left in store.delete_many([key])] == [key]


class TestCreate:
    def test_the_second_create_is_refused_and_changes_nothing(self, store: Store) -> None:
        store.create("marker", b"first")

        with pytest.raises(AlreadyExistsError):
            store.create("marker", b"second")
        assert store.get("marker") == b"first"

    def test_exactly_one_of_sixteen_creators_wins(self, store: Store) -> None:
        for number in range(3):
            key = f"log/{number}.turn"
            answers = race([lambda me=me, key=key: store.create(key, b"%d" % me) for me in range(RACERS)])
            winners = [me for me, answer in enumerate(answers) if not isinstance(answer, Exception)]
            assert len(winners) == 1
            assert all(isinstance(a, AlreadyExistsError) for a in answers if isinstance(a, Exception))
            assert store.get(key) == b"%d" % winners[0]

    def test_a_create_whose_answer_was_lost_is_recognised_when_read_back(self, store: Store) -> None:
        FAILPOINTS.arm({"decide.create.after": "lost"})
        try:
            with step("decide"), pytest.raises(OutcomeUnknownError):
                store.create("marker", b"mine")
            with step("decide"), pytest.raises(AlreadyExistsError):
                store.create("marker", b"mine again")
        finally:
            FAILPOINTS.arm({})

        assert store.get("marker") == b"mine"


class TestConditions:
    def test_a_put_replaces_only_the_named_version(self, store: Store) -> None:
        first = store.put("_SUCCESS", b"first")
        second = store.put("_SUCCESS", b"second", if_version=first.version)

        with pytest.raises(PreconditionFailedError):
            store.put("_SUCCESS", b"third", if_version=first.version)
        assert store.head("_SUCCESS").version == second.version
        assert store.get("_SUCCESS") == b"second"

    def test_a_conditional_put_to_a_missing_object_creates_nothing(self, store: Store) -> None:
        version = store.put("other", b"").version

        with pytest.raises(PreconditionFailedError):
            store.put("a/b", b"", if_version=version)
        assert keys(store) == ["other"]

    def test_exactly_one_of_sixteen_conditional_puts_wins(self, store: Store) -> None:
        version = store.put("lease", b"free").version

        answers = race(
            [lambda me=me: store.put("lease", b"%d" % me, if_version=version) for me in range(RACERS)]
        )

        winners = [me for me, answer in enumerate(answers) if not isinstance(answer, Exception)]
        assert len(winners) == 1
        assert store.get("lease") == b"%d" % winners[0]

    def test_a_delete_removes_only_the_named_version(self, store: Store) -> None:
        trusted = with_capabilities(store, probe(store).capabilities)
        first = trusted.put("a", b"first")
        second = trusted.put("a", b"second")

        with pytest.raises(PreconditionFailedError):
            trusted.delete("a", if_version=first.version)
        assert store.get("a") == b"second"

        trusted.delete("a", if_version=second.version)
        trusted.delete("a", if_version=second.version)
        assert keys(store) == []


class TestDelete:
    def test_a_deleted_object_is_gone_and_a_second_delete_changes_nothing(self, store: Store) -> None:
        store.put("a/b/c", b"")
        store.put("a/d", b"")

        store.delete("a/b/c")
        store.delete("a/b/c")
        store.delete("never/was")

        assert keys(store) == ["a/d"]

    def test_emptying_a_folder_never_loses_an_object_being_created_in_it(self, store: Store) -> None:
        def make(key: str) -> None:
            for _ in range(50):
                # A server over a file system may refuse such a create, but must report the refusal.
                with suppress(NotAppliedError):
                    store.create(key, b"x")
                    return
            raise AssertionError(f"{key} was refused 50 times")

        def churn(me: int) -> None:
            for number in range(10):
                make(f"folder/deep/{me}-{number}")
                assert store.get(f"folder/deep/{me}-{number}") == b"x"
                store.delete(f"folder/deep/{me}-{number}")
            make(f"folder/deep/{me}-last")

        assert race([lambda me=me: churn(me) for me in range(4)]) == [None] * 4
        assert keys(store) == [f"folder/deep/{me}-last" for me in range(4)]


class TestListing:
    def test_keys_come_in_the_order_of_their_bytes(self, store: Store) -> None:
        names = ["a-b", "a/b", "a/b-c", "a/b/c", "a.b/x", "a0", "A", "é", "z", "~", "𝄞", "\uffee"]
        made = [name for name in names if name != "a/b"]
        for name in made:
            store.put(name, b"")

        assert keys(store) == sorted(made, key=str.encode)
        assert keys(store, page_size=1) == sorted(made, key=str.encode)

    def test_a_prefix_that_ends_in_a_slash_does_not_find_the_neighbour(self, store: Store) -> None:
        for name in ("dataset1/a", "dataset1/b/c", "dataset10/a", "dataset1-x/a", "dataset"):
            store.put(name, b"")

        assert keys(store, "dataset1/") == ["dataset1/a", "dataset1/b/c"]
        assert keys(store, "dataset1") == ["dataset1-x/a", "dataset1/a", "dataset1/b/c", "dataset10/a"]
        assert keys(store, "dataset1/b") == ["dataset1/b/c"]
        assert keys(store, "nothing/") == []
        assert keys(store, "dataset/") == []

    def test_neighbouring_destinations_do_not_see_each_other(self, open_at: Callable[[str], Store]) -> None:
        one, ten = open_at("dataset1"), open_at("dataset10")
        one.put("a", b"one")
        ten.put("a", b"ten")
        upload(ten, "b", b"pending")

        assert one.get("a") == b"one"
        assert keys(one) == ["a"]
        assert open_uploads(one) == []

    def test_a_listing_can_continue_after_any_key(self, store: Store) -> None:
        names = ["a", "b-c", "b/1", "b/2/x", "b/3", "c/1"]
        for name in names:
            store.put(name, b"")

        for after in [
            "",
            "a",
            "aa",
            "b",
            "b-c",
            "b/",
            "b/1",
            "b/2",
            "b/2/",
            "b/2/x",
            "b/2/y",
            "b0",
            "c/1",
            "d",
        ]:
            assert keys(store, after=after) == [name for name in names if name > after]
            assert keys(store, "b/", after=after) == [n for n in names if n > after and n.startswith("b/")]

    def test_keys_are_listed_in_pages_and_deleted_in_bulk(self, store: Store) -> None:
        count, page = rounds((250, 100), (2_500, 1_000))
        names = sorted(f"part={n % 7}/{n:05}" for n in range(count))
        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(lambda name: store.put(name, b"x"), names))

        pages = list(store.pages(page_size=page))
        assert [len(page) for page in pages] == [page] * (count // page) + [count % page]
        assert [found.key for page in pages for found in page] == names
        assert all(found.size == 1 and found.version for page in pages for found in page)
        of_part = (count + 3) // 7
        sizes = [len(page) for page in store.pages("part=3/", page_size=10)]
        assert sizes == [10] * (of_part // 10) + [of_part % 10]

        # S3 deletes at most 1,000 in a request.
        assert store.delete_many([*names, *(f"never/was-{n}" for n in range(1_001))]) == []
        assert list(store.pages()) == []


class TestProbe:
    def test_a_probe_confirms_all_capabilities_and_leaves_nothing(self, store: Store) -> None:
        store.put("bystander", b"")
        report = probe(store)

        broken = [finding for finding in report.findings if not finding.ok]
        assert [finding.name for finding in broken if "lifecycle" not in finding.name] == []
        assert report.capabilities.conditional_create
        assert report.capabilities.conditional_put
        assert report.capabilities.conditional_delete
        assert keys(store) == ["bystander"]
        assert open_uploads(store) == []

    def test_a_store_can_be_opened_with_fewer_capabilities(self, store: Store) -> None:
        capabilities = msgspec.structs.replace(store.capabilities, conditional_delete=False)
        careful = with_capabilities(store, capabilities)

        assert careful.capabilities == capabilities
        assert store.put("a", b"").size == 0
        assert keys(careful) == ["a"]


class TestWatching:
    def test_every_call_passes_a_failpoint_before_and_after_and_is_counted(self, store: Store) -> None:
        seen: list[str] = []
        assert isinstance(store, InstrumentedStore)
        FAILPOINTS.observer = seen.append
        try:
            with step("decide"):
                store.create("a", b"")
            list(store.pages())
        finally:
            FAILPOINTS.observer = None

        # Another test's job may renew its lease in this process.
        seen = [name for name in seen if "journal-renew" not in name]
        assert seen[:2] == ["decide.create.before", "decide.create.after"]
        assert seen[2:4] == ["idle.list.before", "idle.list.after"]
        assert store.requests["create"] == 1

    def test_a_call_refused_before_it_is_made_has_no_effect(self, store: Store) -> None:
        FAILPOINTS.arm({"decide.create.before": "refuse@2"})
        try:
            with step("decide"):
                store.create("first", b"")
                with pytest.raises(NotAppliedError):
                    store.create("second", b"")
        finally:
            FAILPOINTS.arm({})

        assert keys(store) == ["first"]

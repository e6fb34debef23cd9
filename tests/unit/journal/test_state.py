"""A fold's view of the tables: its changes over the rows it read, and undo to a mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.blobs.registry.blob_rows import Blob, BlobJob, Reference, UploadSet
from lockgate.storage_core.blobs.registry.removals import ForgetBlobJob
from lockgate.storage_core.blobs.registry.upload_sets import CompleteUpload
from lockgate.storage_core.commit.registry.entries import RecordJob
from lockgate.storage_core.commit.registry.rows import Destination
from lockgate.storage_core.journal.entries.claim_entries import Claim
from lockgate.storage_core.journal.entries.family import known_families
from lockgate.storage_core.journal.entries.op import Moment, Op
from lockgate.storage_core.journal.entries.state import Row, State, by_columns, prefix
from lockgate.storage_core.stamp import Stamp

R = TypeVar("R", bound=Row)


class Memory:
    """Rows in memory; counts the queries, and the rows returned by `where`."""

    def __init__(self, *rows: Row) -> None:
        self.rows = {(type(row), row.key): row for row in rows}
        self.questions = 0
        self.answered = 0

    def find(self, kind: type[R], keys: Sequence[tuple[Any, ...]]) -> Sequence[R]:
        self.questions += 1
        return [row for key in keys if isinstance(row := self.rows.get((kind, key)), kind)]

    def where(self, kind: type[R], columns: Mapping[str, Any], *, limit: int | None = None) -> Sequence[R]:
        self.questions += 1
        found = [
            row
            for row in self.rows.values()
            if isinstance(row, kind) and all(getattr(row, name) == value for name, value in columns.items())
        ][:limit]
        self.answered += len(found)
        return found

    def within(
        self, kind: type[R], columns: tuple[str, ...], values: Sequence[tuple[Any, ...]]
    ) -> Sequence[R]:
        self.questions += 1
        of_kind = [row for row in self.rows.values() if isinstance(row, kind)]
        return [row for row in of_kind if tuple(getattr(row, name) for name in columns) in values]


def claim(name: str, body: str = "") -> Claim:
    return Claim(store="s3://lake", name=name, body=body, claimed_s=0.0)


def test_rows_of_one_table_are_read_in_one_query_and_only_once() -> None:
    rows = Memory(claim("a"), claim("b"))
    state = State(rows)
    state.load([(Claim, ("s3://lake", name)) for name in ("a", "b", "absent", "a")])
    assert rows.questions == 1
    assert state.get(Claim, "s3://lake", "a") == claim("a")
    assert state.get(Claim, "s3://lake", "absent") is None
    assert rows.questions == 1


def test_a_changed_row_is_seen_instead_of_the_row_that_was_read() -> None:
    state = State(Memory(claim("a", "old"), claim("b", "old"), claim("c", "old")))
    state.put(claim("a", "new"))
    state.put(claim("d", "new"))
    state.delete(claim("b"))
    assert state.get(Claim, "s3://lake", "a") == claim("a", "new")
    assert state.get(Claim, "s3://lake", "b") is None
    assert [row.name for row in state.where(Claim, store="s3://lake")] == ["a", "c", "d"]
    assert [row.name for row in state.where(Claim, body="old")] == ["c"]
    assert state.where(Destination) == []


CHANGES = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "2", None])), max_size=8)


def change(state: State, changes: Sequence[tuple[str, str | None]]) -> None:
    for name, body in changes:
        if body is None:
            state.delete(claim(name))
        else:
            state.put(claim(name, body))


def seen(state: State) -> tuple[object, ...]:
    names = tuple(state.get(Claim, "s3://lake", name) for name in ("a", "b", "c"))
    return names, state.where(Claim), dict(state.changes)


@given(CHANGES, CHANGES, CHANGES)
def test_undo_reverts_changes_since_the_mark_and_none_before(
    kept: list[tuple[str, str | None]],
    refused: list[tuple[str, str | None]],
    after: list[tuple[str, str | None]],
) -> None:
    state, expected = State(Memory(claim("a"), claim("b"))), State(Memory(claim("a"), claim("b")))
    change(state, kept)
    change(expected, kept)
    mark = state.mark()
    change(state, refused)
    state.undo(mark)
    assert seen(state) == seen(expected)
    change(state, after)
    change(expected, after)
    assert seen(state) == seen(expected)


def test_every_kind_of_entry_must_define_how_it_folds() -> None:
    class Unfoldable(Op, frozen=True, tag="unfoldable"):
        """Does not define how it folds."""

    with pytest.raises(TypeError, match="fold"):
        Unfoldable()
    assert len(known_families().ops) > 5
    assert [kind for kind in known_families().ops if kind.__abstractmethods__] == []


def test_a_span_that_was_read_follows_what_is_put_deleted_and_undone() -> None:
    rows = Memory()
    state = State(rows)
    state.add_spans([prefix(Claim, "s3://lake")], [claim("kept"), claim("gone")])

    def names() -> list[str]:
        return [row.name for row in state.where(Claim, store="s3://lake")]

    assert names() == ["gone", "kept"]
    state.delete(claim("gone"))
    state.put(Claim(store="s3://other", name="elsewhere", body="", claimed_s=0.0))
    assert names() == ["kept"]
    mark = state.mark()
    state.put(claim("new"))
    assert names() == ["kept", "new"]
    state.undo(mark)
    assert names() == ["kept"]
    assert rows.questions == 0


KEYS = st.tuples(*[st.sampled_from(["1", "2"])] * 3)
SPANS = st.lists(st.tuples(KEYS, st.integers(1, 3)), max_size=4)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "mark", "undo"]), KEYS, st.floats(1, 9)), max_size=16
)


def reference(key: tuple[str, ...], taken_s: float = 0.0) -> Reference:
    job_id, blob_key, owner = key
    return Reference(job_id=job_id, blob_key=blob_key, owner=owner, taken_s=taken_s)


def blob(key: str, upload_set: str = "") -> Blob:
    return Blob(
        job_id="j", blob_key=key, guarantee="ha", use="other", name="", size_bytes=1, upload_set=upload_set,
        put_s=0.0,
    )  # fmt: skip


@given(st.sets(KEYS), SPANS, st.lists(KEYS, max_size=3), STEPS)
def test_spans_of_any_length_give_the_same_answers_as_the_rows_themselves(
    stored: set[tuple[str, ...]],
    spans: list[tuple[tuple[str, ...], int]],
    touched: list[tuple[str, ...]],
    steps: list[tuple[str, tuple[str, ...], float]],
) -> None:
    model = {key: reference(key) for key in stored}
    rows = Memory(*model.values())
    state = State(rows)
    state.add(Reference, touched, rows.find(Reference, touched))
    for (_, columns), values in by_columns(prefix(Reference, *key[:size]) for key, size in spans).items():
        found = [row for key, row in model.items() if key[: len(columns)] in values]
        state.add_spans([(Reference, columns, one) for one in values], found)
    marks = [(state.mark(), dict(model))]
    for step, key, taken_s in steps:
        match step:
            case "put":
                state.put(reference(key, taken_s))
                model[key] = reference(key, taken_s)
            case "delete":
                state.delete(reference(key))
                model.pop(key, None)
            case "mark":
                marks.append((state.mark(), dict(model)))
            case _:
                mark, model = marks.pop() if len(marks) > 1 else (marks[0][0], dict(marks[0][1]))
                state.undo(mark)
        assert state.get(Reference, *key) == model.get(key)
        for length in (1, 2, 3):
            shared = dict(zip(Reference.KEY[:length], key, strict=False))
            expected = [model[other] for other in sorted(model) if other[:length] == key[:length]]
            assert state.where(Reference, **shared) == expected
    assert not any((Reference, key) in state.absent for key in stored)


def test_the_end_of_any_number_of_jobs_needs_no_query_of_its_own() -> None:
    jobs = [f"job{number}-g1" for number in range(50)]
    ends = [
        RecordJob(
            destination="s3://lake", job_id=job, name=job, short_id="", committer="", mode="append",
            phase="committed", job_attempt="", set_up_s=1.0, ended_s=5.0,
        )
        for job in jobs
    ]  # fmt: skip
    rows = Memory(
        *(BlobJob(job_id=job, destination="s3://lake", commit_job=job, submitted_s=0.0) for job in jobs)
    )
    state, families = State(rows), known_families()
    state.load(key for end in ends for key in families.touches(end))
    state.load_spans(span for end in ends for span in families.spans(end))
    loaded = rows.questions
    for number, end in enumerate(ends, start=1):
        end.fold(state, Moment(stamp=Stamp(1, number), at_s=5.0))
    assert rows.questions == loaded == 4  # jobs, destinations, totals of days, jobs of blobs
    assert [state.get(BlobJob, job) for job in jobs] == [
        BlobJob(job_id=job, destination="s3://lake", commit_job=job, submitted_s=0.0, final_s=5.0)
        for job in jobs
    ]


def test_a_row_that_leaves_or_enters_a_span_of_an_index_is_followed() -> None:
    state = State(Memory(blob("k1", "s"), blob("k2", "s"), blob("k3", "other")))
    state.load_spans([(Blob, ("upload_set",), ("s",))])
    mark = state.mark()
    state.put(blob("k1"))
    state.put(blob("k3", "s"))
    assert [row.blob_key for row in state.where(Blob, upload_set="s")] == ["k2", "k3"]
    state.undo(mark)
    assert [row.blob_key for row in state.where(Blob, upload_set="s")] == ["k1", "k2"]


def test_closing_a_set_takes_the_same_number_of_queries_for_any_number_of_blobs() -> None:
    keys = [f"k{number}" for number in range(50)]
    kept = {"k7", "k8"}
    rows = Memory(*(blob(key, "s") for key in keys), *(reference(("j", key, "viewer:1")) for key in kept))
    rows.rows[UploadSet, ("s",)] = UploadSet(upload_set="s", job_id="j", began_s=0.0)
    state = State(rows)
    closing = CompleteUpload(upload_set="s")
    state.load(closing.touches())
    touched = rows.questions
    assert closing.fold(state, Moment(stamp=Stamp(1, 1), at_s=5.0)) == 50
    assert rows.questions == touched + 2
    assert {row.blob_key for row in state.where(Blob, job_id="j") if row.staged_s is None} == kept
    assert state.where(Blob, upload_set="s") == []


def test_spans_read_late_include_earlier_changes() -> None:
    rows = Memory(claim("gone"), claim("kept"), Claim(store="s3://other", name="x", body="", claimed_s=0.0))
    state = State(rows)
    state.delete(claim("gone"))
    state.put(claim("new"))
    state.load_spans(prefix(Claim, f"s3://{store}") for store in ("lake", "other", "none"))
    assert rows.questions == 1
    for store, names in {"s3://lake": ["kept", "new"], "s3://other": ["x"], "s3://none": []}.items():
        assert [row.name for row in state.where(Claim, store=store)] == names
    state.load_spans([prefix(Claim, "s3://lake")])
    assert rows.questions == 1


def test_a_job_is_forgotten_without_reading_its_remaining_blobs() -> None:
    ended = BlobJob(job_id="j", destination="", commit_job="", submitted_s=0.0, final_s=1.0)
    rows = Memory(ended, *(blob(f"k{number}") for number in range(50)))
    state = State(rows)
    forget = ForgetBlobJob(job_id="j", final_for_s=1.0)
    assert forget.fold(state, Moment(stamp=Stamp(1, 1), at_s=5.0)) is False
    assert rows.answered == 1

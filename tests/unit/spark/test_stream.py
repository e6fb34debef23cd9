"""Batches of a streaming query, run by run: replays, zombies and dead drivers; needs no Java."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from lockgate import attach_job, read_manifest, recover_job
from lockgate.storage_core.clock import SystemClock
from lockgate.storage_core.commit.job_summary import list_jobs
from lockgate.storage_core.commit.records.phase import JobPhase
from lockgate.storage_core.errors import ConflictError, FencedError, InvalidInputError, OutcomeUnknownError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.spark.source_options import stream_options
from lockgate.storage_core.spark.writer import task_write
from lockgate.storage_core.spark.writer.stream import QUERY_ID, TaskOfBatch, TaskWithoutRows
from lockgate.storage_core.stores import open_store
from tests.support.spark.streaming_query import QUERY, SparkTask, Stream, TasksHere


class DaysLater(SystemClock):
    """A clock three days ahead: every lease and every suspension deadline has lapsed."""

    slept_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + 3 * 86_400 + self.slept_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.slept_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    tasks = TasksHere()
    monkeypatch.setattr(task_write, "TaskContext", tasks)
    return Stream(str(tmp_path / "sales"), tasks)


def test_planning_a_batch_makes_no_store_calls(stream: Stream) -> None:
    stream.run()
    assert not Path(stream.destination).exists()


def test_tasks_set_up_the_job_of_a_batch_and_the_driver_commits_it(stream: Stream) -> None:
    run = stream.run()
    messages = stream.tasks_of(run, [1, 2, 3])
    (job,) = list_jobs(stream.destination)
    assert (job.job_id, job.phase, job.lease) == (f"stream-{QUERY}-batch-0-g1", JobPhase.OPEN, "suspended")
    assert job.record is not None
    assert job.record.description == "batch 0 of streaming query sales"
    assert stream.ids() == []

    run.commit(messages, 0)

    assert stream.ids() == stream.listed_ids() == [1, 2, 3]
    assert stream.jobs() == [("batch-0-g1", JobPhase.COMMITTED)]
    assert stream.open_uploads() == []


def test_the_writer_works_in_tasks_that_run_in_another_directory(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run = stream.run(path="sales")
    monkeypatch.chdir("/")
    messages = [stream.task(pickle.loads(pickle.dumps(run)), 0, [1])]
    stream.run().commit(pickle.loads(pickle.dumps(messages)), 0)
    assert stream.ids() == [1]


def test_a_batch_without_rows_costs_no_call(stream: Stream) -> None:
    run = stream.run()
    messages = [stream.task(run, 0, []), stream.task(run, 1, [])]
    assert messages == [TaskWithoutRows(), TaskWithoutRows()]
    run.commit(messages, 0)
    run.abort(messages, 0)
    assert not Path(stream.destination).exists()


def test_a_complete_result_replaces_the_previous_one_even_if_it_has_no_rows(stream: Stream) -> None:
    stream.publish([1, 2], overwrite=True)
    stream.publish([3, 4], batch=1, overwrite=True)
    assert stream.ids() == stream.listed_ids() == [3, 4]
    stream.publish([], batch=2, overwrite=True)
    assert stream.ids() == stream.listed_ids() == []


def test_a_replay_of_a_published_batch_writes_nothing(stream: Stream) -> None:
    stream.publish([1, 2])
    before = read_manifest(stream.destination)

    run = stream.run()
    messages = stream.tasks_of(run, [1, 2])
    assert stream.open_uploads() == []
    run.commit(messages, 0)
    run.abort(messages, 0)

    assert read_manifest(stream.destination) == before
    assert stream.jobs() == [("batch-0-g1", JobPhase.COMMITTED)]


def test_a_skipped_batch_is_logged_with_its_job_and_turn(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lockgate.stream")
    stream.publish([0], batch=7)
    stream.publish([1, 2])
    assert caplog.records == []
    stream.publish([3, 4])  # a copied or edited checkpoint gives other rows to a known batch
    assert stream.ids() == [0, 1, 2]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"batch 0: job stream-{QUERY}-batch-0-g1 has already published it in turn 2" in record.getMessage()


def test_a_batch_that_lost_an_upload_after_its_decision_is_written_again(stream: Stream) -> None:
    run = stream.run()
    messages = stream.tasks_of(run, [1, 2])
    FAILPOINTS.arm({"decide.create.after": "lost", "decide.get.before": "refuse@2"})
    with pytest.raises(OutcomeUnknownError):
        run.commit(messages, 0)
    FAILPOINTS.arm({})
    store = open_store(stream.destination)
    lost = next(info for page in store.upload_pages() for info in page)
    store.abort_upload(lost.key, lost.upload_id)

    stream.publish([1, 2])

    assert stream.ids() == stream.listed_ids() == [1, 2]
    assert stream.jobs() == [("batch-0-g1", JobPhase.FAILED), ("batch-0-g2", JobPhase.COMMITTED)]


def test_only_task_attempts_that_spark_committed_count(stream: Stream) -> None:
    run = stream.run()
    stream.task(run, 0, [7, 8])
    winner = stream.task(run, 0, [1, 2])
    stream.task(run, 0, [9])
    run.commit([winner], 0)
    assert stream.ids() == stream.listed_ids() == [1, 2]
    assert stream.open_uploads() == []


def test_a_replay_of_an_unfinished_batch_uses_no_task_of_the_previous_run(stream: Stream) -> None:
    killed = stream.run()
    stream.task(killed, 0, [1, 2])  # Spark may split the rows differently the next time
    stream.task(killed, 1, [3])
    run = stream.run()
    run.commit([stream.task(run, 0, [1, 2, 3])], 0)
    assert stream.ids() == stream.listed_ids() == [1, 2, 3]
    assert stream.jobs() == [("batch-0-g1", JobPhase.COMMITTED)]
    assert stream.open_uploads() == []


def test_a_zombie_that_ends_while_the_replay_runs_does_not_commit(stream: Stream) -> None:
    killed, run = stream.run(), stream.run()
    messages = []
    with pytest.raises(FencedError, match="lost the job"):
        stream.task(killed, 0, [1, 2], on_the_way=lambda: messages.extend(stream.tasks_of(run, [1, 2])))
    run.commit(messages, 0)
    assert stream.ids() == [1, 2]
    assert stream.open_uploads() == []


def test_a_zombie_that_starts_during_the_replay_costs_only_one_try(stream: Stream) -> None:
    killed, run = stream.run(), stream.run()
    with pytest.raises(FencedError, match="lost the job"):
        stream.task(run, 0, [1, 2], on_the_way=lambda: stream.task(killed, 0, [1, 2]))
    run.commit([stream.task(run, 0, [1, 2])], 0)
    assert stream.ids() == [1, 2]
    assert stream.open_uploads() == []


def test_a_zombie_that_outlives_the_batch_writes_nothing(stream: Stream) -> None:
    killed = stream.run()
    with pytest.raises(ConflictError, match="is decided"):
        stream.task(killed, 0, [1, 2], on_the_way=lambda: stream.publish([1, 2]))
    late = stream.task(killed, 0, [1, 2])
    assert isinstance(late, TaskOfBatch)
    assert late.committed is None
    assert stream.ids() == [1, 2]
    assert stream.open_uploads() == []


def test_two_drivers_that_both_commit_a_batch_publish_it_once(stream: Stream) -> None:
    first, second = stream.run(), stream.run()
    ours, theirs = stream.tasks_of(first, [1, 2, 3]), stream.tasks_of(second, [1, 2, 3])
    first.commit(ours, 0)
    second.commit(theirs, 0)
    first.commit(ours, 0)
    assert stream.ids() == stream.listed_ids() == [1, 2, 3]
    assert stream.open_uploads() == []


def test_a_batch_that_spark_aborts_leaves_nothing_and_its_replay_is_the_next_generation(
    stream: Stream,
) -> None:
    run = stream.run()
    run.abort([stream.task(run, 0, [1]), None], 0)
    assert stream.jobs() == [("batch-0-g1", JobPhase.FAILED)]
    assert stream.open_uploads() == []
    stream.publish([1, 2])
    assert stream.ids() == [1, 2]
    assert stream.jobs() == [("batch-0-g1", JobPhase.FAILED), ("batch-0-g2", JobPhase.COMMITTED)]


def test_a_batch_aborted_without_task_messages_waits_for_its_replay(stream: Stream) -> None:
    run = stream.run()
    stream.task(run, 0, [1])
    run.abort([None, None], 0)
    (job,) = list_jobs(stream.destination)
    assert (job.phase, job.lease) == (JobPhase.OPEN, "suspended")
    stream.publish([1, 2])
    assert stream.ids() == [1, 2]
    assert stream.open_uploads() == []


def test_a_driver_that_was_replaced_does_not_abort_its_successors_batch(stream: Stream) -> None:
    killed, run = stream.run(), stream.run()
    stale = stream.tasks_of(killed, [1, 2])
    messages = stream.tasks_of(run, [1, 2])
    killed.abort(stale, 0)
    run.commit(messages, 0)
    killed.abort(stale, 0)
    assert stream.ids() == [1, 2]


def test_recovery_aborts_a_batch_whose_driver_never_came_back(stream: Stream) -> None:
    run = stream.run()
    stream.tasks_of(run, [1, 2])
    (job,) = list_jobs(stream.destination)
    assert recover_job(stream.destination, job.job_id, clock=DaysLater()).ended is JobPhase.FAILED
    assert stream.open_uploads() == []
    stream.publish([1, 2])
    assert stream.ids() == [1, 2]


def test_tasks_that_saw_their_job_aborted_in_between_do_not_publish_half_a_batch(stream: Stream) -> None:
    run = stream.run()
    first = stream.task(run, 0, [1])
    (job,) = list_jobs(stream.destination)
    attach_job(stream.destination, job.job_id).abort()
    second = stream.task(run, 1, [2])
    with pytest.raises(ConflictError, match="nothing was published; start the query again"):
        run.commit([first, second], 0)
    run.abort([first, second], 0)
    assert stream.ids() == stream.listed_ids() == []
    assert stream.open_uploads() == []


def test_a_query_without_batches_is_refused(stream: Stream) -> None:
    run = stream.run()
    stream.tasks.now = SparkTask(0, 0, {QUERY_ID: QUERY})
    with pytest.raises(InvalidInputError, match="use a trigger with batches"):
        run.write(iter([pa.record_batch({"id": [1]})]))
    assert not Path(stream.destination).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobname": "nightly"}, "option jobName names or splits a single job"),
        ({"jobid": "a-g1", "jobattempt": "b"}, "option jobId, jobAttempt names or splits"),
        ({"commit": "task"}, "option commit names or splits"),
        ({"mode": "fail"}, "would refuse the second batch"),
        ({"compresion": "zstd"}, "lockgate stream: unknown option 'compresion'; known are path, mode"),
        ({"partbytes": "1"}, "lockgate stream: option partBytes='1' must be"),
    ],
)
def test_an_option_without_meaning_for_a_stream_is_refused_by_name(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stream_options({"path": "/data/sales", **options}, overwrite=False)


def test_a_stream_accepts_the_options_of_a_write_and_those_of_spark() -> None:
    given = {"path": "/data", "checkpointlocation": "/ck", "queryname": "sales", "partitionby": "day"}
    options = stream_options(given, overwrite=True)
    assert (options.mode, options.partition_by, options.query_name) == ("replace", ("day",), "sales")
    assert stream_options({**given, "mode": "append"}, overwrite=True).mode == "append"

"""Publication: every upload of the plan is completed, and the turn's outcome is decided, once.

Source: commit protocol, steps 6 and 7.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockgate.storage_core.commit.decide.plan import Plan, read_plan
from lockgate.storage_core.commit.publish.commit_context import JobWork
from lockgate.storage_core.commit.publish.displaced_files import move_aside
from lockgate.storage_core.commit.publish.shard_completion import ShardReport, complete_shard
from lockgate.storage_core.commit.records import layout
from lockgate.storage_core.commit.records.job import (
    Decision,
    FileFate,
    KeyShard,
    LiveFile,
    LiveShard,
    Outcome,
    Receipt,
    ShardRef,
)
from lockgate.storage_core.commit.records.job_folder import claim
from lockgate.storage_core.commit.records.shards import batches, shard_ref, write_shard
from lockgate.storage_core.errors import MalformedRecordError
from lockgate.storage_core.failpoints import step


def publish(work: JobWork, decision: Decision) -> Outcome:
    """Complete the plan's uploads and decide the turn's outcome; returns the one that stands.

    Every file settled: `published`, and manifest readers see the job, whole, from that instant. A file lost
    for good: `reverted`.

    Raises:
        OutcomeUnknownError: A file is not settled; nothing was deleted; try again.
    """
    plan = _plan_of(work, decision)
    move_aside(work, plan)
    lost = [key for report in _complete_all(work, plan) for key in report.lost]
    for key in lost:
        work.fates.add(
            FileFate(key=key, fate="lost", detail="its upload is gone and its object is not there")
        )
    with step("outcome-lists"):
        outcome = _outcome(work, plan, lost)
    with step("outcome"):
        return claim(work.store, layout.turn_outcome(plan.head.turn), outcome)


def _plan_of(work: JobWork, decision: Decision) -> Plan:
    plan = read_plan(work.folder, decision.plan or "")
    if plan.head.turn != decision.turn:
        raise MalformedRecordError(
            f"{work.folder.key('COMMIT_STARTED')}: field turn is {decision.turn}, its plan's {plan.head.turn}"
        )
    return plan


def _complete_all(work: JobWork, plan: Plan) -> Iterator[ShardReport]:
    count = len(plan.head.additions)
    left = set(range(count))
    if work.completer is not None and count:
        for report in work.completer(work.store.url, work.folder.job_id, plan.name, count):
            if report.shard in left:
                left.remove(report.shard)
                work.progress("complete", count - len(left), count)
                yield report
    done = 0
    for shard in sorted(left):
        base = done

        def progress(name: str, here: int, _total: int, base: int = base) -> None:
            work.progress(name, base + here, plan.files)

        yield complete_shard(
            work.folder, plan.name, shard, settings=work.settings, clock=work.clock, progress=progress
        )
        done += plan.head.additions[shard].files


def _outcome(work: JobWork, plan: Plan, lost: list[str]) -> Outcome:
    now_s = work.clock.now_s()
    turn = plan.head.turn
    if lost:
        return Outcome(
            job_id=work.job.job_id,
            turn=turn,
            verdict="reverted",
            decided_s=now_s,
            reason=f"{len(lost)} pending files were lost for good, the first is {lost[0]}",
        )
    removed = tuple(_removed_shards(work, plan))
    return Outcome(
        job_id=work.job.job_id,
        turn=turn,
        verdict="published",
        decided_s=now_s,
        added=tuple(_added_shards(work, plan)),
        removed=removed,
        columns=work.job.spec.columns,
        receipt=Receipt(
            job_id=work.job.job_id,
            turn=turn,
            committer=work.job.spec.committer,
            mode=plan.head.mode,
            plan=plan.name,
            files=plan.files,
            rows=plan.rows,
            size=plan.size,
            removed_files=sum(ref.files for ref in removed),
            published_s=now_s,
        ),
    )


def _added_shards(work: JobWork, plan: Plan) -> Iterator[ShardRef]:
    live = (
        LiveFile(
            key=file.key,
            size=file.upload.size,
            rows=file.rows,
            token=file.upload.token,
            job_id=work.job.job_id,
        )
        for file in plan.all_additions()
    )
    for batch in batches(live):
        name = write_shard(work.store, layout.log_shard, LiveShard(files=batch))
        yield shard_ref(name, (f.size for f in batch), (f.rows for f in batch))


def _removed_shards(work: JobWork, plan: Plan) -> Iterator[ShardRef]:
    for batch in batches(plan.all_removals()):
        name = write_shard(work.store, layout.log_shard, KeyShard(keys=tuple(file.key for file in batch)))
        yield shard_ref(name, (file.size for file in batch), ())

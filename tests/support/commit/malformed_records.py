"""Jobs that are about to read a record, for every kind of record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from lockgate.storage_core.commit.job import Job
from lockgate.storage_core.commit.records.codec import digest
from lockgate.storage_core.commit.records.expected_tasks import ExpectedTask, StagedFile
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.ids import TaskId
from tests.support.commit.destination import Crash, World, dying, write

OLD = {"old.csv": b"0"}
NEW = {"a.csv": b"1", "b.csv": b"22"}
Change = Callable[[dict[str, Any]], object]


@dataclass
class Stage:
    """A job that reads the record next.

    Attributes:
        key: Key of the record.
        job: Job of the record.
        visible: Files that a listing reader sees until then.
    """

    world: World
    key: str
    job: Job
    visible: Mapping[str, bytes]

    def read(self) -> object:
        """Make the job read the record."""
        return self.world.attach(self.job.job_id).commit()

    def tamper(self, data: bytes) -> str:
        """Replace the record's bytes, with matching digests for a plan; return the key."""
        if "/plan/" not in self.key:
            self.world.store.put(self.key, data)
            return self.key
        return self._forge(data)

    def _forge(self, data: bytes) -> str:
        folder, name = self.job._folder, digest(data)
        decision = json.loads(self.world.store.get(folder.key("COMMIT_STARTED")))
        head_key = folder.key(f"plan/{decision['plan']}/plan.json")
        if self.key == head_key:
            head, key = data, folder.key(f"plan/{name}/plan.json")
        else:
            document = json.loads(self.world.store.get(head_key))
            for ref in (*document["additions"], *document["removals"]):
                if ref["digest"] in self.key:
                    ref["digest"] = name
            head, key = json.dumps(document).encode(), folder.key(f"plan/shards/{name}.json")
            self.world.store.put(key, data)
        self.world.store.put(folder.key(f"plan/{digest(head)}/plan.json"), head)
        decision["plan"] = digest(head)
        self.world.store.put(folder.key("COMMIT_STARTED"), json.dumps(decision).encode())
        return key


def died_at(world: World, point: str | None, mode: str = "append") -> Job:
    """Return a job of two files whose driver died at a point, or has only written its task."""
    world.run("old", OLD)
    job = world.open_job("sales", mode=mode)
    job.expect([ExpectedTask(task_id=TaskId("t"), files=(StagedFile("a.csv", 1),))])
    write(job, "t", NEW)
    if point:
        with dying_at(point):
            job.commit()
    job.close()
    return job


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    """Kill the process at a point: every later call dies, too."""
    dead = False

    def observe(name: str) -> None:
        nonlocal dead
        dead = dead or name == point
        if dead:
            raise Crash(name)

    FAILPOINTS.observer = dying(observe)
    try:
        with suppress(Crash):
            yield
    finally:
        FAILPOINTS.observer = None


def _pending_set(world: World) -> Stage:
    job = died_at(world, None)
    attempt = next(job.pending_sets()).attempt_id
    return Stage(world, job._folder.pending_set_key(TaskId("t"), attempt), job, OLD)


def _expected_tasks(world: World) -> Stage:
    job = died_at(world, None)
    return Stage(world, job._folder.key(f"attempts/{job.job_attempt}.json"), job, OLD)


def _job_record(world: World) -> Stage:
    job = died_at(world, None)
    return Stage(world, job._folder.key("job.json"), job, OLD)


def _plan_of(world: World, what: str) -> Stage:
    mode, point = (
        ("replace", "outcome.create.after") if what == "removals" else ("append", "decide.create.after")
    )
    job = died_at(world, point, mode)
    decision = job._folder.decision()
    assert decision is not None
    key = job._folder.key(f"plan/{decision.plan}/plan.json")
    if what != "head":
        (ref,) = json.loads(world.store.get(key))[what]
        key = job._folder.key(f"plan/shards/{ref['digest']}.json")
    return Stage(world, key, job, {**OLD, **NEW} if what == "removals" else OLD)


def _decision(world: World) -> Stage:
    job = died_at(world, "decide.create.after")
    return Stage(world, job._folder.key("COMMIT_STARTED"), job, OLD)


def _success(world: World) -> Stage:
    job = died_at(world, "clean-up.delete_many.before")
    return Stage(world, job._folder.key("COMMIT_SUCCESS"), job, {**OLD, **NEW})


def _failure(world: World) -> Stage:
    job = died_at(world, None)
    # It dies during its clean-up, because no records of a completed job are read.
    with dying_at("clean-up.delete_many.before"):
        job.abort()
    return Stage(world, job._folder.key("COMMIT_FAIL"), job, OLD)


def _turn_claim(world: World) -> Stage:
    return Stage(world, "_lockgate/log/00000002.turn", died_at(world, "turn.create.after"), OLD)


def _outcome(world: World) -> Stage:
    return Stage(world, "_lockgate/log/00000001.json", died_at(world, None), OLD)


RECORDS: Final[Mapping[str, Callable[[World], Stage]]] = {
    "pending set": _pending_set,
    "expected tasks": _expected_tasks,
    "job.json": _job_record,
    "plan": lambda world: _plan_of(world, "head"),
    "plan shard": lambda world: _plan_of(world, "additions"),
    "removal shard": lambda world: _plan_of(world, "removals"),
    "COMMIT_STARTED": _decision,
    "COMMIT_SUCCESS": _success,
    "COMMIT_FAIL": _failure,
    "turn": _turn_claim,
    "outcome": _outcome,
}
"""Each in a destination with one published job, `old`, beside the job `sales` that reads it next."""

LOG: Final = ("turn", "outcome")
"""Records that belong to no single job: every later commit here reads them."""


def inside(document: dict[str, Any], *path: str | int) -> Any:
    """Return a nested value of a document."""
    found: Any = document
    for step in path:
        found = found[step]
    return found

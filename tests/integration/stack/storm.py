"""Commit jobs by the workers and put blobs until the standard input ends, then read what is visible.

It runs in a container of the stack. Each line that it prints is the outcome of one job or blob.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from threading import Event, Lock, Thread

from lockgate import open_job, read_manifest
from lockgate.storage_core.blobs.blob_protocol import NO_JOB
from lockgate.storage_core.blobs.open_blobs import open_blobs
from lockgate.storage_core.commit.staged_files import group_into_tasks, list_staged
from lockgate.storage_core.settings import load_settings
from lockgate.workers.dispatch import commit_tasks

ME = f"{time.time():.0f}"
DESTINATION = f"s3://lake/storm-{ME}"
FILES = 3

ended = Event()
printing = Lock()
outcomes: dict[str, bool] = {}


def commit(name: str) -> None:
    """Commit one job, whose files two Celery workers upload."""
    with open_job(DESTINATION, mode="append", committer="staging", name=name) as job:
        folder = Path(job.staging_dir) / job.job_attempt
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / f"{name}_{number}.txt").write_text(name)
        tasks = group_into_tasks(list_staged(folder, marker=None))
        job.expect(tasks, staging=str(folder))
        commit_tasks(DESTINATION, job.job_id, job.job_attempt, [task.task_id for task in tasks])
        job.commit()
    outcomes[name] = True


def put(name: str) -> None:
    """Put one blob, with a copy on S3, and read it."""
    with open_blobs(load_settings()) as blobs:
        info = blobs.put(name.encode(), name=name)
        assert blobs.get(NO_JOB, info.blob_key) == name.encode()


def repeat(what: str, do: Callable[[str], None]) -> None:
    number = 0
    while not ended.is_set():
        number += 1
        name, began, error = f"{what}-{ME}-{number}", time.time(), ""
        if what == "job":
            outcomes[name] = False
        try:
            do(name)
        except Exception as raised:  # noqa: BLE001 - any error is an answer
            error = f"{type(raised).__name__}: {raised}"
        say(what=what, began=began, seconds=round(time.time() - began, 1), error=error)
        ended.wait(1 if error or what == "blob" else 0)


def say(**answer: object) -> None:
    with printing:
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


threads = [Thread(target=repeat, args=one) for one in (("job", commit), ("blob", put))]
for thread in threads:
    thread.start()
sys.stdin.read()
ended.set()
for thread in threads:
    thread.join()
seen = Counter(PurePosixPath(file).name.partition("_")[0] for file in read_manifest(DESTINATION).files)
acknowledged = [name for name, ok in outcomes.items() if ok]
say(
    what="end",
    acknowledged=len(acknowledged),
    errors=len(outcomes) - len(acknowledged),
    lost=[name for name in acknowledged if not seen[name]],
    partial={name: files for name, files in seen.items() if files != FILES},
    unsure_but_visible=[name for name, ok in outcomes.items() if not ok and seen[name]],
)

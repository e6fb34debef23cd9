"""Keys of all records under a destination.

DEST/_lockgate/
    log/00000007.turn  log/00000007.json  log/00000100.checkpoint
    shards/<digest>.json  checkpoint.json
    ids/<short id>  store.json  sweep.json  asset-events/<job id>.json
    tables/<number>.json  tags/<name>.json  history.json  expired.json  kept/<key>
    names/<name>/<10**9 - generation>.json
    jobs/<job id>/
        job.json  lease.json  COMMIT_STARTED  COMMIT_SUCCESS  COMMIT_FAIL  report.json
        attempts/<job attempt>.json
        tasks/<task>/<attempt>.pendingset
        audits/<chosen digest>.json
        plan/<digest>/plan.json  plan/<digest>/<shard digest>.json
DEST/_SUCCESS
"""

from __future__ import annotations

import re
from typing import Final

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.ids import JobId, JobName, ShortId, check_id, split_job_id

ROOT: Final = "_lockgate/"
LOG: Final = f"{ROOT}log/"
JOBS: Final = f"{ROOT}jobs/"
NAMES: Final = f"{ROOT}names/"
TABLES: Final = f"{ROOT}tables/"
TAGS: Final = f"{ROOT}tags/"
ASSET_EVENTS: Final = f"{ROOT}asset-events/"
SUCCESS: Final = "_SUCCESS"
SWEEP_STATE: Final = f"{ROOT}sweep.json"
PROBED: Final = f"{ROOT}store.json"
CHECKPOINT_HINT: Final = f"{ROOT}checkpoint.json"

HISTORY_RULE: Final = f"{ROOT}history.json"
EXPIRED: Final = f"{ROOT}expired.json"
KEPT: Final = f"{ROOT}kept/"

_GENERATIONS: Final = 10**9
"""Greater than every generation: the difference is in a key, so that the newest is the first in a listing."""

_TURN: Final = re.compile(r"(?P<turn>[0-9]{8,})\.(?P<kind>turn|json|checkpoint)")


def turn_claim(turn: int) -> str:
    """Return the key of the claim of a turn."""
    return f"{LOG}{turn:08d}.turn"


def turn_outcome(turn: int) -> str:
    """Return the key of the outcome of a turn."""
    return f"{LOG}{turn:08d}.json"


def checkpoint(turn: int) -> str:
    """Return the key of the checkpoint of the log up to a turn."""
    return f"{LOG}{turn:08d}.checkpoint"


def log_shard(digest: str) -> str:
    """Return the key of a shard of an outcome or a checkpoint."""
    return f"{ROOT}shards/{check_id('shard digest', digest)}.json"


def parse_log_key(key: str) -> tuple[int, str] | None:
    """Return turn and kind (`turn`, `json`, `checkpoint`) of a key in the log; None for other keys."""
    match = _TURN.fullmatch(key.removeprefix(LOG))
    return None if match is None else (int(match["turn"]), match["kind"])


def kept(key: str) -> str:
    """Return the place of a replaced file that is kept for readers of earlier turns."""
    return f"{KEPT}{key}"


def tables(number: int) -> str:
    """Return the key of a change of the destination's table formats."""
    return f"{TABLES}{number:08d}.json"


def tag(name: str) -> str:
    """Return the key of a tag.

    Raises:
        InvalidInputError: A tag cannot have this name.
    """
    if not check_id("tag", name)[0].isalpha():
        raise InvalidInputError(
            f"tag {name!r} begins with a digit, as a turn or a time does; begin with a letter"
        )
    return f"{TAGS}{name}.json"


def short_id_claim(short: ShortId) -> str:
    """Return the key of the claim of a short id."""
    return f"{ROOT}ids/{short}"


def job_folder(job: JobId) -> str:
    """Return the key prefix of a job's records, ending in `/`.

    Raises:
        InvalidInputError: The value is not a job id.
    """
    split_job_id(job)
    return f"{JOBS}{job}/"


def ended_generations(name: JobName) -> str:
    """Return the key prefix of the records of a name's ended generations, ending in `/`."""
    return f"{NAMES}{name}/"


def ended_generation(job: JobId) -> str:
    """Return the key of the record of a generation's end."""
    name, generation = split_job_id(job)
    return f"{ended_generations(name)}{_GENERATIONS - generation:09d}.json"


def parse_ended_generation(key: str) -> int:
    """Return the generation of such a key; 0 for other keys."""
    number = key.rpartition("/")[2].removesuffix(".json")
    return _GENERATIONS - int(number) if number.isdecimal() else 0


def is_hidden(key: str) -> bool:
    """Return whether a listing reader skips this key, by Spark's rule.

    A segment is hidden, with all below it, if it starts with `.`, or with `_` and is no partition (`_a=1`).
    """
    return any(
        segment.startswith(".") or (segment.startswith("_") and "=" not in segment)
        for segment in key.split("/")
    )

"""Whether a bucket's lifecycle rules suit jobs: old uploads must go by themselves, those of jobs must not.

The sweep takes what it can see. What lies under a destination that is gone costs money until a rule of the
bucket aborts it; a rule that acts too soon takes a running job's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

DAY_S: Final = 86_400.0


def rule_problem(rules: Iterable[Mapping[str, Any]], prefix: str, *, longest_job_s: float) -> str:
    """Return what is wrong with a bucket's rules for open uploads, and the remedy; empty if nothing is.

    Args:
        rules: As GetBucketLifecycleConfiguration answers.
        prefix: Of the destination's keys: empty, or ending in `/`.
        longest_job_s: What a rule must allow at least.
    """
    wanted = f"AbortIncompleteMultipartUpload after at least {_days(longest_job_s / DAY_S)}"
    aborting = sorted(_aborting(rules))
    for days, where in aborting:
        reaches = where.startswith(prefix) or prefix.startswith(where)
        if reaches and days * DAY_S < longest_job_s:
            return (
                f"the bucket's rule for {where or 'all keys'!r} aborts uploads after {_days(days)}, also "
                f"those of a job at work, which may take {_days(longest_job_s / DAY_S)} "
                f"(LOCKGATE_LONGEST_JOB_S); set {wanted}"
            )
    if not any(prefix.startswith(where) for _, where in aborting):
        return (
            "no rule of the bucket reaches all uploads of this destination, and what no sweep can see costs "
            f"money for ever; add {wanted}"
        )
    return ""


def _aborting(rules: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield after how many days each rule aborts uploads, and below which prefix."""
    for rule in rules:
        action = rule.get("AbortIncompleteMultipartUpload")
        if rule["Status"] == "Enabled" and action is not None:
            # S3 allows no other filter than a prefix beside this action; old rules have it at the top.
            chosen = rule.get("Filter", rule)
            yield action["DaysAfterInitiation"], chosen.get("And", chosen).get("Prefix", "")


def _days(days: float) -> str:
    return f"{days:g} day" if days == 1 else f"{days:g} days"

"""Check a bucket's lifecycle rules: they must abort old uploads, but not those of running jobs.

A sweep aborts only uploads that it can find. Uploads of a deleted destination cost money until a lifecycle
rule aborts them; a rule that acts too early deletes a running job's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

DAY_S: Final = 86_400.0


def rule_problem(rules: Iterable[Mapping[str, Any]], prefix: str, *, longest_job_s: float) -> str:
    """Return the problem of a bucket's rules for open uploads with its remedy; empty if there is none.

    Args:
        rules: Response of GetBucketLifecycleConfiguration.
        prefix: Prefix of the destination's keys: empty, or ending in `/`.
        longest_job_s: Minimum age at which a rule may abort uploads.
    """
    wanted = f"AbortIncompleteMultipartUpload after at least {_days(longest_job_s / DAY_S)}"
    aborting = sorted(_aborting(rules))
    for days, where in aborting:
        overlaps = where.startswith(prefix) or prefix.startswith(where)
        if overlaps and days * DAY_S < longest_job_s:
            return (
                f"the bucket's rule for {where or 'all keys'!r} aborts uploads after {_days(days)}, also "
                f"those of a running job, which may take {_days(longest_job_s / DAY_S)} "
                f"(LOCKGATE_LONGEST_JOB_S); set {wanted}"
            )
    if not any(prefix.startswith(where) for _, where in aborting):
        return (
            "no rule of the bucket applies to all uploads of this destination, and uploads that no sweep "
            f"finds cost money for ever; add {wanted}"
        )
    return ""


def _aborting(rules: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield days and prefix of each rule that aborts uploads."""
    for rule in rules:
        action = rule.get("AbortIncompleteMultipartUpload")
        if rule["Status"] == "Enabled" and action is not None:
            # S3 allows only a prefix as the filter of this action; old rules have it at the top level.
            chosen = rule.get("Filter", rule)
            yield action["DaysAfterInitiation"], chosen.get("And", chosen).get("Prefix", "")


def _days(days: float) -> str:
    return f"{days:g} day" if days == 1 else f"{days:g} days"

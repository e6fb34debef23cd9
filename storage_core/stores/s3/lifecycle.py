"""Check a bucket's lifecycle rules: they must abort old uploads, but not those of running jobs, and no files.

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


def expiry_problem(rules: Iterable[Mapping[str, Any]], prefix: str, *, keeps_versions: bool) -> str:
    """Return the problem of a bucket's rules for live and kept files with its remedy; empty if there is none.

    Args:
        rules: Response of GetBucketLifecycleConfiguration.
        prefix: Prefix of the destination's keys: empty, or ending in `/`.
        keeps_versions: Whether the bucket has versioning.
    """
    rules = list(rules)
    for action, where in _with("Expiration", rules):
        if ("Days" in action or "Date" in action) and (where.startswith(prefix) or prefix.startswith(where)):
            when = f"after {_days(action['Days'])}" if "Days" in action else f"on {action['Date']:%Y-%m-%d}"
            return (
                f"the bucket's rule for {where or 'all keys'!r} deletes objects {when}: live files, and "
                "files that are kept for readers of earlier turns; let it have other prefixes"
            )
    if keeps_versions and not any(
        prefix.startswith(where) for _, where in _with("NoncurrentVersionExpiration", rules)
    ):
        return (
            "the bucket keeps versions, and no rule ends them: replaced files cost money for ever, those "
            "that are kept for readers of earlier turns twice; add NoncurrentVersionExpiration"
        )
    return ""


def _aborting(rules: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield days and prefix of each rule that aborts uploads."""
    for action, where in _with("AbortIncompleteMultipartUpload", rules):
        yield action["DaysAfterInitiation"], where


def _with(name: str, rules: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield an action and the prefix of each rule that has it, but of those for objects with tags only."""
    for rule in rules:
        action = rule.get(name)
        if rule["Status"] == "Enabled" and action is not None:
            chosen = rule.get("Filter", rule)  # old rules have the prefix at the top level
            chosen = chosen.get("And", chosen)
            if not {"Tag", "Tags"} & chosen.keys():
                yield action, chosen.get("Prefix", "")


def _days(days: float) -> str:
    return f"{days:g} day" if days == 1 else f"{days:g} days"

"""Actions: what a person may start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lockgate.plugins.web.models.model import Model

ActionName = Literal["recover", "abort", "sweep-uploads", "sweep-blobs", "leave-safe-mode"]


class ActionRequest(Model):
    """What to do.

    Attributes:
        dry_run: Report what would be done, and change nothing; the default.
        destination: For `recover`, `abort` and `sweep-uploads`.
        job_id: For `recover` and `abort`.
        reason: For `abort`: recorded with the decision. For `leave-safe-mode`: the reason to leave.
    """

    dry_run: bool = True
    destination: Annotated[str, Field(max_length=2_048)] | None = None
    job_id: Annotated[str, Field(max_length=512)] | None = None
    reason: Annotated[str, Field(max_length=1_000)] = ""


class ActionStarted(Model):
    """What was started, or would be done.

    Attributes:
        text: One sentence.
        href: Address where its progress is seen; None for a dry run, or if it is done already.
        lines: Of a dry run: one line for each thing that it would do.
    """

    action: ActionName
    dry_run: bool
    text: str
    href: str | None = None
    lines: tuple[str, ...] = ()

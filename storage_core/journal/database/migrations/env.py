"""What Alembic runs: the steps that a database lacks, over the connection that holds its lock.

Alembic neither begins nor commits here. The caller's transaction is around all steps, so that a crash leaves
the older version as it was.
"""

from __future__ import annotations

from typing import Any

from alembic import context

from lockgate.storage_core.failpoints import FAILPOINTS


def _taken(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:  # noqa: ARG001 - Alembic's names
    FAILPOINTS.hit(f"journal-upgrade.{step.up_revision_id}")


context.configure(connection=context.config.attributes["connection"], on_version_apply=_taken)
context.run_migrations()

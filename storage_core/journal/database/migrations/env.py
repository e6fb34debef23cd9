"""Alembic's environment: run the missing migrations on the connection that holds the lock.

Alembic neither begins nor commits. All migrations run in the caller's transaction, so that a crash changes
nothing.
"""

from __future__ import annotations

from typing import Any

from alembic import context

from lockgate.storage_core.failpoints import FAILPOINTS


def _taken(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:  # noqa: ARG001 - Alembic's names
    FAILPOINTS.hit(f"journal-upgrade.{step.up_revision_id}")


context.configure(connection=context.config.attributes["connection"], on_version_apply=_taken)
context.run_migrations()

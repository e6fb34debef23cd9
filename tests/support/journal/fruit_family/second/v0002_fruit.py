"""An empty second version."""

from __future__ import annotations

revision = "fruit_2"
down_revision = "fruit_1"


def upgrade() -> None:
    """Change nothing."""

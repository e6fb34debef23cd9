"""The first version, as it is."""

from tests.support.journal.fruit_family.first.v0001_fruit import (
    branch_labels,
    down_revision,
    revision,
    upgrade,
)

__all__ = ["branch_labels", "down_revision", "revision", "upgrade"]

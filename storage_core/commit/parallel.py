"""The same call for many items, as the commit uses it: see `storage_core.parallel`."""

from storage_core.parallel import Progress, in_parallel, no_progress

__all__ = ["Progress", "in_parallel", "no_progress"]

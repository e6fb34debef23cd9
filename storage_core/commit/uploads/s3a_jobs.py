"""Find Hadoop's S3A jobs that may be at work at a destination, by the folders of the magic committer.

A magic committer keeps its pending files below its own destination until its job ends: in the folder
`__magic_job-<id>/`, in older versions of Hadoop `__magic/`. Its open uploads have the final names of the
files, which do not name the job.

Source: S3A committers, "The Magic Committer".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from lockgate.storage_core.stores import Store

MAGIC: Final = ("__magic_job-", "__magic/")


@dataclass
class S3aJobs:
    """Finds magic folders in a destination; each folder is listed once, for one key."""

    store: Store
    _found: dict[str, str | None] = field(default_factory=dict)

    def above(self, key: str) -> str | None:
        """Return the magic folder of a job whose destination contains this key, None if there is none.

        Raises:
            LockgateError: The store refused the listing or gave no answer.
        """
        folders = key.split("/")[:-1]
        for folder in accumulate(folders, lambda above, name: f"{above}{name}/", initial=""):
            found = self.inside(folder)
            if found is not None:
                return found
        return None

    def inside(self, folder: str = "") -> str | None:
        """Return the magic folder directly inside a folder; the folder is empty or ends in `/`."""
        if folder not in self._found:
            self._found[folder] = self._list(folder)
        return self._found[folder]

    def _list(self, folder: str) -> str | None:
        for kind in MAGIC:
            for page in self.store.pages(f"{folder}{kind}", page_size=1):
                for info in page:
                    name, in_folder, _ = info.key.removeprefix(folder).partition("/")
                    return f"{folder}{name}/" if in_folder else None
        return None

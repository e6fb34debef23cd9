"""fsspec's transaction: every task that it wrote commits at its end, or is aborted."""

from __future__ import annotations

from fsspec.transaction import Transaction  # type: ignore[import-untyped]  # fsspec has no types

from lockgate.storage_core.errors import ConflictError


class TaskTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """Refuses to end well with nothing in it: a library that was given a URL has written past it."""

    def complete(self, commit: bool = True) -> None:
        """Commit the tasks of all files that were opened in it, or abort them.

        Raises:
            ConflictError: No file was opened through its file system instance.
            LockgateError: A task did not commit; those behind it are aborted.
        """
        wrote = bool(self.files)
        super().complete(commit)
        if commit and not wrote:
            raise ConflictError(
                "this transaction wrote no file, so no task was committed; every URL that a library opens "
                "by itself is a file system instance of its own: hand it the instance (filesystem=fs), or a "
                "file that fs.open has opened; a task without data: commit_task(path, allow_empty=True)"
            )

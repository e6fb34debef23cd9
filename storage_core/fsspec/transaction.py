"""fsspec's transaction: at its end it commits each task that it wrote, or aborts them."""

from __future__ import annotations

from fsspec.transaction import Transaction  # type: ignore[import-untyped]  # fsspec has no types

from lockgate.storage_core.errors import ConflictError


class TaskTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """A transaction that fails if it wrote no file: a library that opened a URL itself has bypassed it."""

    def complete(self, commit: bool = True) -> None:
        """Commit the tasks of all files opened in it, or abort them.

        Raises:
            ConflictError: No file was opened through its file system instance.
            LockgateError: A task did not commit; the tasks after it are aborted.
        """
        wrote = bool(self.files)
        super().complete(commit)
        if commit and not wrote:
            raise ConflictError(
                "this transaction wrote no file, so no task was committed; each URL that a library opens "
                "itself is a separate file system instance: pass it the instance (filesystem=fs) or a file "
                "from fs.open; a task without data commits with commit_task(path, allow_empty=True)"
            )

"""The fsspec file system, for libraries that write and read by path; its public name is `lockgate.fsspec`.

Files written below a task's `root` are pending files of one attempt of the task. Any other path is read from
the destination's log: complete jobs only. `docs/guides/fsspec.md` has an example for each library.
"""

from lockgate.storage_core.errors import MissingPartError

try:
    import fsspec as _fsspec  # type: ignore[import-untyped]  # noqa: F401 - only asked for
except ImportError as error:
    raise MissingPartError(
        f"lockgate.fsspec needs {error.name}, which is not installed; pip install 'lockgate[fsspec]'"
    ) from error

"""The appendable files that the settings name: those of the default journal, and of its satellites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from lockgate.storage_core.clock import Clock
from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.files.files import Files
from lockgate.storage_core.files.home_files import open_journal_files
from lockgate.storage_core.files.namespace.mounts import Mount
from lockgate.storage_core.journal.observers.reading_client import Client
from lockgate.storage_core.journal.process_journal import configured_journal
from lockgate.storage_core.satellite.overlay import Overlay
from lockgate.storage_core.satellite.union_reads import Side
from lockgate.storage_core.settings import Settings, load_settings


@contextmanager
def open_files(
    settings: Settings | None = None, *, clock: Clock | None = None, reads: Client | None = None
) -> Iterator[Files]:
    """Open the files of the settings' journal and of its satellites as one tree.

    Args:
        settings: See `open_journal_files`; `journals` has the journals of the satellites, each opened by the
            first call that needs it. From the environment by default.
        clock: Replaces the journals' clock, for tests.
        reads: Client of the settings' journal that is open already; it stays open.

    Raises:
        InvalidInputError: The settings disable the journal, or variables of the environment are invalid.
        JournalUnavailableError: The journal cannot be reached.
    """
    settings = settings or load_settings()
    with ExitStack() as opened:
        sides: dict[str, Side] = {}

        def satellite(mount: Mount) -> Side:
            if mount.journal not in sides:
                of = settings.for_journal(mount.journal)
                journal = configured_journal(of, clock)
                assert journal is not None  # noqa: S101 - it has a URL
                refuse_other_identity(mount, journal.identity)
                sides[mount.journal] = Side(
                    opened.enter_context(open_journal_files(of, clock=clock)), journal
                )
            return sides[mount.journal]

        made = Files if settings.is_one_journal else partial(Overlay, satellite=satellite)
        yield opened.enter_context(open_journal_files(settings, clock=clock, reads=reads, files=made))


def refuse_other_identity(mount: Mount, identity: str) -> None:
    """Raise unless a journal is the one that was mounted.

    Raises:
        InvalidInputError: It has another identity.
    """
    if identity != mount.identity:
        raise InvalidInputError(
            f"journal {mount.journal} of LOCKGATE_JOURNALS is another one ({identity}) than satellite "
            f"{mount.satellite} was made with ({mount.identity}); nothing was read; correct its URL"
        )

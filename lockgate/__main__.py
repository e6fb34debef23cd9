"""`python -m lockgate`: the command line, also where the folder of its script is not on the PATH."""

from __future__ import annotations

from lockgate.storage_core.cli.root_command import main

main()

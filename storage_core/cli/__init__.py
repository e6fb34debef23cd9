"""The `lockgate` command: what an operator does by hand, and a script by `--json`."""

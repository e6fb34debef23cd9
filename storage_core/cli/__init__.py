"""The `lockgate` command. Commands import their modules when they run, so that `--help` is fast."""

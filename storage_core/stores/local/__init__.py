"""Store objects as files of one directory tree."""

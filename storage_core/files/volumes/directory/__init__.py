"""A volume in a directory, which any number of processes use at once."""

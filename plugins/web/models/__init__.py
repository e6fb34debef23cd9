"""The types of the JSON API, which the pages show too. Their names and fields are kept within a version."""

"""The tree of appendable files in the journal: directories, files, their blocks and members."""

"""A satellite: a journal of its own for many small files, read with the default one as one tree."""

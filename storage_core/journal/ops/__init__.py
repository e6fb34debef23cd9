"""The journal's own kinds of entries, each with what it says and how it folds into rows."""

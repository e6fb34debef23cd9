"""Write entries: mutations, group commit, one transaction."""

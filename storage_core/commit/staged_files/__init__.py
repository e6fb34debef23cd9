"""Files that attempts stage before they become uploads."""

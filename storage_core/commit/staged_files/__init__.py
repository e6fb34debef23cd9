"""Files that attempts stage on disk before they become uploads."""

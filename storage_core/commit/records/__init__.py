"""Records of the commit protocol. Each is one JSON object; `layout.py` defines its key."""

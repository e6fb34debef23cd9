"""Records of the commit protocol: one JSON object each; `layout.py` says where it lies."""

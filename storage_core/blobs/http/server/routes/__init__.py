"""The routes of the blob server, one file a family of calls."""

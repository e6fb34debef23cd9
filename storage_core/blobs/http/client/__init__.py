"""Call a blob server over HTTP."""

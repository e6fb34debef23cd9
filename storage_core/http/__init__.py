"""HTTP for the blob server and its clients. Only `server` imports Starlette."""

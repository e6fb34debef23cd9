"""The blob server as a FastAPI application."""

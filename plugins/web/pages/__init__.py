"""The pages: routes, templates, charts, and static files."""

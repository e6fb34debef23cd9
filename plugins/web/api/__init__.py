"""The routes of the JSON API, `/lockgate/api/v1`."""

"""The JSON API, `/lockgate/api/v1`: each module has the types of one thing, and the functions that read it.

A function is a route, and the pages call it as well, so a page shows what the API answers.
"""

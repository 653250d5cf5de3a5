"""ASGI middleware around the routes: keys and bodies, host names, targets, direct calls."""

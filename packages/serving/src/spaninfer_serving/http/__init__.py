"""Connections and HTTP/1.1: accepted, parsed, answered as server-sent events."""

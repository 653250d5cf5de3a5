"""Filling in the middle: texts between a prefix and a suffix."""

"""Weights packed ahead of time for a backend."""

"""Observability of a server: logs, metrics, traces, profiles."""

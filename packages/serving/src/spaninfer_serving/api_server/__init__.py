"""API servers: processes that answer requests, beside the one whose engine computes steps."""

"""A server under attack beside ordinary clients, on loopback, for a bounded time."""

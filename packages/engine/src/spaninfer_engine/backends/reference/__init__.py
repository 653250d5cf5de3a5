"""The numpy definitions as a backend."""

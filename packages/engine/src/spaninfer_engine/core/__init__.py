"""The core of an engine: its loop, the parts it is made of, and what it reports of itself."""

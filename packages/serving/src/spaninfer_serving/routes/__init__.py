"""One file per group of endpoints; no logic."""

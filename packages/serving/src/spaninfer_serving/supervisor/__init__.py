"""The process that starts the engine's process, and another one after a crash."""

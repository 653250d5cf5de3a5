"""How models write reasoning and tool calls: read while it streams, found from a chat template."""

"""Formats of reasoning and tool calls: parsed while they stream, found from a chat template."""

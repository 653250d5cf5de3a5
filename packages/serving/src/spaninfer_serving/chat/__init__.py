"""Chats on their way to prompts: a template's traits, its input, calls that it has to make."""

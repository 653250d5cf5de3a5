"""Anthropic's Messages API on top of chat: requests, answers, and the format of its errors."""

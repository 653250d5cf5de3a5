"""Requests as data: prompts, media, sampling parameters and outputs."""

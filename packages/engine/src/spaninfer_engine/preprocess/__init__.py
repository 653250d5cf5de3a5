"""Requests with media on their way to the model; the only room that knows spaninfer-multimodal."""

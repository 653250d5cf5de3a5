"""Hugging Face folders: config, weights, and the files beside them."""

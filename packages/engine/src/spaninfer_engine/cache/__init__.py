"""The KV cache as numbers: spans handed out and taken back, prefixes, offloading, encodings."""

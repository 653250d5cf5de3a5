"""Attention over spans in one step: what is planned for all layers, and what is read."""

"""Implementations of the operators, one folder each, and the devices that run them."""

"""Readers of weights that were published quantised, each into op_reference's QuantizedWeight."""

"""The language of spec values: notation, types, and evaluation over names and config keys."""

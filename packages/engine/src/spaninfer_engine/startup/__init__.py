"""The start of an engine, from a path: open, resolve, check, bind, measure."""

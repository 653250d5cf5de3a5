"""From a path to a running engine: open, resolve, check, bind, measure."""

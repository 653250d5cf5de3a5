"""From fields of a body to what the engine takes: parameters, forms of answers, media."""

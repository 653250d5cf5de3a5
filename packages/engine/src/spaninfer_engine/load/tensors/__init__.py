"""Named arrays of a checkpoint, and what they are made of."""

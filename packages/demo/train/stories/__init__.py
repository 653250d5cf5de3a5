"""Small stories and conversations, written by a seeded grammar: most of the training text."""

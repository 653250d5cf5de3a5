"""Plain torch, on every device that it knows."""

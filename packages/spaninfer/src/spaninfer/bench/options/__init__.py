"""What each sampling option costs those who ask for it, and those who do not."""

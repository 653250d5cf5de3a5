"""The second stage of the demo model's training: it learns to see."""

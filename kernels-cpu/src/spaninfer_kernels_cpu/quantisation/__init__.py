"""Weight formats: packed weights, and quantised weights and activations."""

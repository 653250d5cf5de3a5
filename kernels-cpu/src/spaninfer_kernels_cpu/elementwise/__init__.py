"""Norms, rotary embeddings, activations and other arithmetic number by number."""

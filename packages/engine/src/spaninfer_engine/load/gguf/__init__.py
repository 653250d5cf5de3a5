"""GGUF files, read as Hugging Face would have written them."""

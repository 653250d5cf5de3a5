"""From conversations, texts and prompts to requests, without a model's weights."""

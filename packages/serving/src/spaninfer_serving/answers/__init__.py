"""The engine's outputs as OpenAI's answers, whole and as they grow."""

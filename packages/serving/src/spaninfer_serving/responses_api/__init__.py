"""OpenAI's Responses API on top of chat: requests to conversations, answers to items, a store."""

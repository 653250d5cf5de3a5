"""From sampled tokens to callers: text, handles, queues, and relays to other processes."""

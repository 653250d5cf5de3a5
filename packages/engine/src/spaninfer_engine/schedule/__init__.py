"""The scheduler: admission, the batch of a step, KV cache blocks, preemption."""

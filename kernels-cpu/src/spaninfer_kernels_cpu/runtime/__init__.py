"""The runtime: a thread pool, CPU affinity, NUMA, scratch memory, and processes that compile."""

"""Models as flat programs: lowered from nodes, bound to a backend."""

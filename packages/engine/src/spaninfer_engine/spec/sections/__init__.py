"""Readers of a spec's sections: each makes the nodes that its section describes."""

"""`spaninfer bench cpu`: limits of the machine, kernels beside them, engine beside llama.cpp."""

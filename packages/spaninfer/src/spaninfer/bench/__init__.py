"""`spaninfer bench`: how fast engine and kernels are here, as records that can be compared."""

"""One step between the scheduler and a device: sequences, batches, and the device protocol."""

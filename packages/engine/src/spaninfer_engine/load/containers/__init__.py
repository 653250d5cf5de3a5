"""Files that hold tensors, whatever else lies beside them."""

"""The engine as the rest of serving knows it: started requests, operations, texts of a batch."""

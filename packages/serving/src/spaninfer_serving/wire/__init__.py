"""What travels: pydantic models and error bodies, nothing else."""

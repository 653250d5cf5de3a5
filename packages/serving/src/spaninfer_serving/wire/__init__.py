"""Wire formats: pydantic models and error bodies, nothing else."""

"""SGLang's native generation: POST /generate."""

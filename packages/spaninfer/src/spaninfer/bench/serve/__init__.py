"""What a server costs per request and per token, beside a model that costs nearly nothing."""

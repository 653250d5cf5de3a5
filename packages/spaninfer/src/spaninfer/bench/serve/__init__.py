"""The server's cost per request and per token, with a model that costs nearly nothing."""

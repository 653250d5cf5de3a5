"""The cost of each sampling option, to requests with it and to requests without it."""

"""From a plan to results: the runner, sampling on the host, token masks, log-probabilities."""

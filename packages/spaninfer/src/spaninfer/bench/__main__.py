"""python -m spaninfer.bench: the benchmarks alone; the server need not be installed for them."""

from spaninfer.bench.commands import app

app()

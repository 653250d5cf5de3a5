"""What a handle and a queue can do."""

from spaninfer import Engine, Placement, SamplingParams

LONG = SamplingParams(max_tokens=2000, ignore_eos=True)

with Engine("demo", max_running=8) as engine:
    handle, queue = engine.start_request("Once upon a time", LONG)
    first = queue.get(timeout=30)  # seconds; TimeoutError after them
    print(handle.status, first.token_ids)

    engine.stop(handle)  # before the next step; what was produced can still be read
    rest = list(queue)
    print(handle.status, rest[-1].finish_reason)

    urgent, urgent_queue = engine.start_request(
        "The end", SamplingParams(max_tokens=8), Placement(priority=-1, deadline_s=20.0)
    )
    engine.sync(urgent, timeout=30)  # wait without reading
    while (output := urgent_queue.get()) is not None:  # None: everything was read
        print(output.text, end="")
    print()

    unread, _ = engine.start_request("Nobody reads this", LONG)
    engine.release(unread)  # stops it and drops what it has produced

    stats = engine.stats()
    print(stats.generated_tokens, "tokens;", stats.spans[0].held, "spans held")

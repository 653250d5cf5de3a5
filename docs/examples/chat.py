"""A conversation, printed as it comes."""

from spaninfer import Engine, SamplingParams

with Engine("demo") as engine:
    prompt_ids = engine.encode_chat([{"role": "user", "content": "Tell me a fable about a fox."}])
    handle, queue = engine.start_request(prompt_ids, SamplingParams(max_tokens=40, seed=1))
    for output in queue:  # everything new since the last one
        print(output.text, end="", flush=True)
    print()
    print(output.finish_reason, output.usage.prompt_len, "+", output.usage.output_len, "tokens")

"""The official client against `spaninfer serve`."""

import os

from openai import OpenAI

address = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=address, api_key="none")  # or the server's --api-key
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Tell me a fable about a fox."}],
    max_tokens=40,
    seed=1,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"top_k": 40, "min_p": 0.05},  # what OpenAI's own servers do not know
)
for event in stream:
    if event.choices:
        print(event.choices[0].delta.content or "", end="", flush=True)
print()
print(event.usage.total_tokens, "tokens")

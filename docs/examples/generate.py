"""One prompt, then several at once."""

from spaninfer import Engine, SamplingParams

with Engine("demo") as engine:  # or the path of a model
    answer = engine.generate("Once upon a time", SamplingParams(max_tokens=24, temperature=0))
    print(answer.text)
    print(answer.finish_reason, answer.usage.output_len, "tokens")

    prompts = ["The fox looked up and", "The crow looked down and"]
    for answer in engine.generate(prompts, SamplingParams(max_tokens=24, seed=7, n=2)):
        print(answer.index, answer.text)

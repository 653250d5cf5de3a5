"""How tokens are chosen, what they cost, and what is refused."""

from spaninfer import Engine, SamplingParams
from spaninfer_engine import InvalidSampling

drawn = SamplingParams(
    temperature=0.8,
    top_p=0.95,
    repetition_penalty=1.1,
    stop=("\n\n",),
    seed=11,  # the same text whenever, and with whomever, it is computed
    logprobs=2,
    max_tokens=32,
)

with Engine("demo") as engine:
    answer = engine.generate("Once upon a time", drawn)
    print(answer.text, answer.finish_reason, repr(answer.matched))
    for entry in answer.logprobs[:3]:
        token = engine.tokenizer.decode([entry.token_id])
        print(f"{token!r}: log-probability {entry.logprob:.2f}, rank {entry.rank}")
    assert engine.generate("Once upon a time", drawn).token_ids == answer.token_ids

try:
    SamplingParams(top_p=1.5)
except InvalidSampling as error:
    print(error)  # top_p is 1.5; allowed is above 0, to 1

"""Print the model's answers to prompts.toml, exactly as they come: python sample.py MODEL."""

import sys
import tomllib
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

_MAX_NEW_TOKENS = 400


def main(folder: str) -> None:
    """Answer every prompt once, with its own seed and the sampling of generation_config.json."""
    torch.set_num_threads(1)
    prompts = tomllib.loads((Path(__file__).parent / "prompts.toml").read_text(encoding="utf-8"))
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for number, prompt in enumerate(prompts["prompts"], 1):
        chat = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        torch.manual_seed(prompts["seed"] + number)
        output = model.generate(**inputs, max_new_tokens=_MAX_NEW_TOKENS)[0]
        answer = tokenizer.decode(output[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        quoted = "\n".join(f"> {line}".rstrip() for line in answer.split("\n"))
        print(f"**{number}. {prompt}**\n\n{quoted}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

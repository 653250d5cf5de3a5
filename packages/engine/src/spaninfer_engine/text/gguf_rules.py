"""Word rules of tokenizers by the name that GGUF files have for them: `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping

from spaninfer_engine.text.byte_bpe import (
    CL100K,
    CONTRACTIONS,
    GPT2,
    QWEN,
    WORDS,
    WordRule,
)

_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased(digits: str, *, ending: str = "", but: str = "", symbols: str = _PATHS) -> str:
    """The pattern of o200k and its like: a word ends where small letters are followed by capitals.

    `ending` may follow a word; `but` takes letters out of words.
    """
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    words = (f"{first}{upper}*{lower}+{ending}", f"{first}{upper}+{lower}*{ending}")
    return "|".join((*words, digits, symbols, _LINES))


_ENDING = f"{CONTRACTIONS}?"
O200K = WordRule(_cased(r"\p{N}{1,3}", ending=_ENDING), whole_words=True)
TEKKEN = WordRule(_cased(r"\p{N}"), whole_words=True)
GLM = WordRule(CL100K.pattern)
STABLELM = WordRule(QWEN.pattern)
DIGITS = WordRule(before=(r"\p{N}",))
SEED = WordRule("|".join((CONTRACTIONS, WORDS, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES)))
BLOOM = WordRule(r" ?[^(\s|.,!?…。，、।۔،)]+")  # noqa: RUF001
KIMI = WordRule(
    "|".join(
        (
            r"\p{Han}+",
            _cased(
                r"\p{N}{1,3}",
                ending=_ENDING,
                but=r"&&[^\p{Han}]",
                symbols=r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            ),
        )
    ),
    whole_words=True,
)
DEEPSEEK_V3 = WordRule(
    "|".join(
        (
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
            r" ?[\p{P}\p{S}]+[\r\n]*",
            _LINES,
        )
    ),
    before=(r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"),
)
_CASED_BEFORE_2018 = (  # letters with case, as far as the tokenizer's list of ranges goes
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{0560}-\x{0588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{1FBE}"
    r"\x{2D00}-\x{2D2D}\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{16E7F}"
    r"\x{1D400}-\x{1D7CB}\x{1DF00}-\x{1DF1E}]]"
)
DEEPSEEK_LLM = WordRule(
    r"\p{N}+",
    before=(
        r"[\r\n]",
        rf"\s?{_CASED_BEFORE_2018}+",
        r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
        r"\s+$",
        r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
    ),
)

BY_GGUF_PRE: Mapping[str, WordRule] = {
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4"), GPT2),
    "qwen2": QWEN,
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), CL100K),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), GLM),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan"), STABLELM),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), O200K),
    **dict.fromkeys(("starcoder", "refact", "smollm", "command-r", "exaone"), DIGITS),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), DEEPSEEK_V3),
    "deepseek-llm": DEEPSEEK_LLM,
    "seed-coder": SEED,
    "tekken": TEKKEN,
    "kimi-k2": KIMI,
    "bloom": BLOOM,
}
"""Rules by name."""

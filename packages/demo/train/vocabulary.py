"""The byte-level BPE tokenizer, trained on a sample of the corpus."""

from itertools import islice
from pathlib import Path

from corpus import END_OF_TEXT, TURN_END, TURN_START, documents, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_NUM_DOCUMENTS = 24_000
_SAMPLE = 2_000_000  # number of the sample's documents: none that any shard has


def train_tokenizer(path: Path, books_dir: Path) -> None:
    """Write tokenizer.json: every byte has a token, so that any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings()["vocab_size"],
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = islice(documents("main", _SAMPLE, books_dir), _NUM_DOCUMENTS)
    tokenizer.train_from_iterator((_without_marks(text) for text in texts), trainer)
    tokenizer.save(str(path))


def _without_marks(text: str) -> str:
    for mark in (END_OF_TEXT, TURN_START, TURN_END):
        text = text.replace(mark, "\n")
    return text

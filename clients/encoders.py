"""Serve an encoder with made-up weights: python clients/encoders.py TASK --port PORT.

TASK is embed (vectors, ranks and scores) or classify. For `nox -s fuzz`: the bundled model is none.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from spaninfer_engine import Engine
from spaninfer_serving import Settings, serve
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "crow", "cheese", "fox")
KINDS = {"embed": "BertModel", "classify": "BertForSequenceClassification"}
CONFIG = {
    "model_type": "bert", "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
    "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
    "id2label": {"0": "tale", "1": "fable"},
}  # fmt: skip


def write(folder: Path, task: str) -> None:
    """Write a BERT without weights."""
    library = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    library.pre_tokenizer = Whitespace()
    library.save(str(folder / "tokenizer.json"))
    config = {"architectures": [KINDS[task]], **CONFIG}
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=KINDS)
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        write(Path(folder), asked.task)
        with Engine(folder, weights="dummy", served_name=asked.task) as engine:
            serve(engine, Settings(port=asked.port, log_requests=False), print)


main()

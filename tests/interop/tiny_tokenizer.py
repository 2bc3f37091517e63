"""Writes a tokenizer folder of a few kilobytes, so that a gateway needs no download: one token per byte, no merges.

    tiny_tokenizer.py DIRECTORY
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"]
TEMPLATE = ("{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def write(directory):
    """The first 94 tokens are the printable ASCII characters from '!' on, in order."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {text: number for number, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()) + SPECIALS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "model_max_length": 131072,
        "chat_template": TEMPLATE,
    }))
    (directory / "config.json").write_text(json.dumps({
        "model_type": "tiny",
        "architectures": ["TinyForCausalLM"],
        "vocab_size": len(vocabulary),
        "bos_token_id": vocabulary["<|bos|>"],
        "eos_token_id": vocabulary["<|eos|>"],
        "max_position_embeddings": 131072,
    }))


if __name__ == "__main__":
    write(sys.argv[1])

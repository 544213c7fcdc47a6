"""Write a tiny random model of any family in Hugging Face layout and as GGUF (F32), for tests.

``python -m tools.make_tiny_model FOLDER --family qwen3`` makes ``FOLDER/hf`` (config.json,
model.safetensors, tokenizer.json, …) and ``FOLDER/tiny.gguf`` with the same weights and vocabulary.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tools.tiny_families import TINY_CONFIGS, tiny_config, weight_shapes
from tools.tiny_gguf import Vocabulary, interleaved, write_gguf

__all__ = ["TinyModel", "interleaved", "make_tiny_model"]

Weights = dict[str, npt.NDArray[np.float32]]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGED_WORDS = ("the", "and", "ing", "tion", "Ġthe", "Ġand", "Ġof", "Ġto", "Ġhello", "Ġworld")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class TinyModel(NamedTuple):
    """What was written."""

    folder: Path
    gguf: Path
    config: dict[str, Any]
    weights: Weights


def make_tiny_model(
    folder: Path, *, seed: int = 0, has_gguf: bool = True, **changes: Any
) -> TinyModel:
    """Write both forms below ``folder``.

    Args:
        folder: made if missing.
        seed: of the random weights.
        has_gguf: False for a variant that the format has no keys or tensors for.
        changes: keys of config.json to change, e.g. ``num_hidden_layers=3``,
            ``attention_bias=True``, ``tie_word_embeddings=True``; ``model_type="qwen2"`` takes
            the keys of that family in place of Llama's.
    """
    tokens, merges = byte_vocabulary()
    config = tiny_config(len(tokens), changes)
    weights = random_weights(config, seed)
    hf_folder = folder / "hf"
    hf_folder.mkdir(parents=True, exist_ok=True)
    _write_huggingface(hf_folder, config, weights, tokens, merges)
    gguf = folder / "tiny.gguf"
    if has_gguf:
        vocabulary = Vocabulary(tokens, merges, SPECIAL_TOKENS, CHAT_TEMPLATE)
        write_gguf(gguf, config, weights, vocabulary)
    return TinyModel(hf_folder, gguf, config, weights)


def byte_vocabulary() -> tuple[list[str], list[str]]:
    """(tokens, merges): specials, the 256 bytes in GPT-2's alphabet, and some merged words."""
    tokens = [*SPECIAL_TOKENS, *(byte_alphabet()[value] for value in range(256))]
    merges: list[str] = []
    for word in MERGED_WORDS:
        left = word[0]
        for character in word[1:]:
            if left + character not in tokens:
                tokens.append(left + character)
                merges.append(f"{left} {character}")
            left += character
    return tokens, merges


def byte_alphabet() -> dict[int, str]:
    """GPT-2's byte alphabet: printable Latin-1 as it stands, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (value for value in range(256) if value not in printable)
    shifted = {value: chr(256 + index) for index, value in enumerate(others)}
    return {value: shifted.get(value, chr(value)) for value in range(256)}


def random_weights(config: dict[str, Any], seed: int) -> Weights:
    """Normal values that keep activations near 1; norms and biases are not trivial."""
    random = np.random.default_rng(seed)
    norm = 0.0 if config["model_type"].startswith("gemma") else 1.0
    weights: Weights = {}
    for name, shape in weight_shapes(config).items():
        values = random.standard_normal(shape)
        if "norm" in name:
            values = norm + 0.2 * values
        elif name.endswith("bias"):
            values *= 0.5
        elif "embed" not in name:
            values *= shape[-1] ** -0.5
        weights[name] = values.astype(np.float32)
    return weights


def _write_huggingface(
    folder: Path, config: dict[str, Any], weights: Weights, tokens: list[str], merges: list[str]
) -> None:
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"bos_token_id": 1, "eos_token_id": [2, 0]}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=TINY_CONFIGS, default="llama")
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    changes: dict[str, Any] = {"model_type": arguments.family}
    if arguments.layers is not None:
        changes["num_hidden_layers"] = arguments.layers
    model = make_tiny_model(arguments.folder, seed=arguments.seed, **changes)
    print(model.folder, model.gguf, sep="\n")


if __name__ == "__main__":
    main()

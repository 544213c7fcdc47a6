"""Write a tiny random Llama in Hugging Face layout and as GGUF (F32), for tests.

``python tools/make_tiny_model.py FOLDER`` makes ``FOLDER/hf`` (config.json, model.safetensors,
tokenizer.json, …) and ``FOLDER/tiny.gguf`` with the same weights and vocabulary.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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


def make_tiny_model(folder: Path, *, seed: int = 0, **changes: Any) -> TinyModel:
    """Write both forms below ``folder``.

    Args:
        folder: made if missing.
        seed: of the random weights (normal, deviation 0.05; norms near 1).
        changes: keys of config.json to change, e.g. ``num_hidden_layers=3``,
            ``attention_bias=True``, ``tie_word_embeddings=True``, ``model_type="qwen2"``.
    """
    tokens, merges = byte_vocabulary()
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        **changes,
    }
    weights = random_weights(config, seed)
    hf_folder = folder / "hf"
    hf_folder.mkdir(parents=True, exist_ok=True)
    _write_huggingface(hf_folder, config, weights, tokens, merges)
    gguf = folder / "tiny.gguf"
    _write_gguf(gguf, config, weights, tokens, merges)
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


def weight_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face name → shape, written out apart from the product's own table."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    has_qkv_bias = config["attention_bias"] or config["model_type"] == "qwen2"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        linear = {
            "self_attn.q_proj": (q_size, hidden, has_qkv_bias),
            "self_attn.k_proj": (kv_size, hidden, has_qkv_bias),
            "self_attn.v_proj": (kv_size, hidden, has_qkv_bias),
            "self_attn.o_proj": (hidden, q_size, config["attention_bias"]),
            "mlp.gate_proj": (inner, hidden, config["mlp_bias"]),
            "mlp.up_proj": (inner, hidden, config["mlp_bias"]),
            "mlp.down_proj": (hidden, inner, config["mlp_bias"]),
        }
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, has_bias) in linear.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def random_weights(config: dict[str, Any], seed: int) -> Weights:
    """Normal with deviation 0.05; norm weights around 1."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(1.0 if "norm" in name else 0.0, 0.05, shape).astype(np.float32)
        for name, shape in weight_shapes(config).items()
    }


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


def _write_gguf(
    path: Path, config: dict[str, Any], weights: Weights, tokens: list[str], merges: list[str]
) -> None:
    from gguf import GGUFWriter

    architecture = config["model_type"]
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, values in weights.items():
        stored = values
        if architecture == "llama" and ".q_proj." in name:
            stored = interleaved(values, config["num_attention_heads"])
        if architecture == "llama" and ".k_proj." in name:
            stored = interleaved(values, config["num_key_value_heads"])
        writer.add_tensor(_gguf_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rotate-half rows → GGUF's order for Llama: per head, row i of each half at 2i and 2i + 1."""
    head_dim = rows.shape[0] // num_heads
    order = [
        head * head_dim + half * (head_dim // 2) + index
        for head in range(num_heads)
        for index in range(head_dim // 2)
        for half in range(2)
    ]
    return np.ascontiguousarray(rows[order])


def _gguf_name(name: str) -> str:
    for long, short in (
        ("model.embed_tokens", "token_embd"),
        ("model.layers", "blk"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ):
        name = name.replace(long, short)
    return name


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()
    model = make_tiny_model(
        arguments.folder, seed=arguments.seed, num_hidden_layers=arguments.layers
    )
    print(model.folder, model.gguf, sep="\n")


if __name__ == "__main__":
    main()

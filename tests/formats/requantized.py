"""Models whose matrices are stored as other elements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGUFValueType
from gguf.quants import dequantize

from tools.make_tiny_model import TinyModel


def requantized(made: TinyModel, path: Path, quantize: Any, number: Any) -> dict[str, Any]:
    """Copy ``made`` with matrices in another element type; returns the values it then holds."""
    reader, writer = GGUFReader(made.gguf), GGUFWriter(path, "llama")
    for key, value in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = value.types[1] if value.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, value.contents(), value.types[0], inner)
    held: dict[str, Any] = {}
    for item in reader.tensors:
        if item.data.ndim == 1:
            writer.add_tensor(item.name, item.data)
            continue
        stored = quantize(np.array(item.data))
        writer.add_tensor(item.name, stored, raw_dtype=number)
        held[item.name] = dequantize(stored, number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {
        "model.embed_tokens.weight": held["token_embd.weight"],
        "model.layers.0.mlp.down_proj.weight": held["blk.0.ffn_down.weight"],
        "model.layers.0.mlp.gate_up_proj.weight": np.concatenate(
            [held["blk.0.ffn_gate.weight"], held["blk.0.ffn_up.weight"]]
        ),
        "lm_head.weight": held["output.weight"],
    }

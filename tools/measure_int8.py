"""What INT8 weights do to a model's answers: logit error and greedy agreement with float32.

    python -m tools.measure_int8 [--model demo] [--tokens 128]

On the CPU, weights quantized by the function that the CUDA device loads them with. The prompts of
tests/fixtures/smollm2-greedy.json are continued greedily in float32; then both models read the same
texts (teacher forcing), and their logits are compared at every position.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from hybridgen.config import Config, DeviceSection, ModelSection
from hybridgen.formats.convert import load_weights, prepare_weights
from hybridgen.formats.inspect import inspect_model
from hybridgen.formats.model_info import ModelInfo
from hybridgen.models.config import ModelConfig
from hybridgen.models.cuda.int8_rows import dequantize_rows, quantize_rows
from hybridgen.models.engine import Engine
from hybridgen.models.reference import reference_logits
from hybridgen.models.registry import load_engine
from hybridgen.models.weight_names import EMBEDDING, LM_HEAD

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "smollm2-greedy.json"
Tensors = dict[str, torch.Tensor]


class Comparison(NamedTuple):
    """Of one text, position by position.

    Attributes:
        error: largest logit difference over the standard deviation of the right logits.
        mean_error: the mean difference, likewise.
        agrees: whether both models prefer the same token.
        margin: of the right model's favourite before its second, over the same deviation.
    """

    error: torch.Tensor
    mean_error: torch.Tensor
    agrees: torch.Tensor
    margin: torch.Tensor


def main() -> int:
    """Continue, compare, print."""
    options = _parse()
    config = Config(
        model=ModelSection(model=options.model, dtype="float32"),
        device=DeviceSection(num_kv_blocks=4 * -(-(64 + options.tokens) // 16)),
    )
    info = inspect_model(options.model, config)
    texts = continued(info, config, options.tokens)
    tensors = dict(load_weights(prepare_weights(info, "float32")))
    rough_config, rough = quantized(info.config, tensors)
    parts = []
    for prompt_length, ids in texts:
        right = reference_logits(info.config, tensors, ids, torch.float32)
        found = reference_logits(rough_config, rough, ids, torch.float32)
        parts.append((prompt_length, compare(found, right)))
    _print(info, parts)
    return 0


def continued(info: ModelInfo, config: Config, num_tokens: int) -> list[tuple[int, torch.Tensor]]:
    """(length of the prompt, ids of prompt and greedy continuation) of each prompt."""
    engine = load_engine(info, config, lambda _share, _what: None)
    prompts = [
        np.array(p["prompt_ids"], np.int32) for p in json.loads(FIXTURE.read_text())["prompts"]
    ]
    width = engine.num_blocks // len(prompts)
    tables = np.arange(len(prompts) * width, dtype=np.int32).reshape(len(prompts), width)
    logits = np.empty((len(prompts), engine.vocab_size), np.float32)
    for prompt, table, row in zip(prompts, tables, logits, strict=True):
        engine.prefill(prompt, 0, table, row)
    answers = _greedy(engine, [len(prompt) for prompt in prompts], tables, logits, num_tokens)
    engine.close()
    texts = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ends = np.flatnonzero(np.isin(answer, info.config.eos_ids))
        whole = np.concatenate([prompt, answer[: ends[0] + 1] if len(ends) else answer])
        texts.append((len(prompt), torch.from_numpy(whole).long()))
    return texts


def _greedy(
    engine: Engine, lengths: list[int], tables: np.ndarray, logits: np.ndarray, num_tokens: int
) -> np.ndarray:
    positions = np.array(lengths, np.int32)
    steps = []
    for _ in range(num_tokens):
        steps.append(logits.argmax(1).astype(np.int32))
        engine.decode(steps[-1], positions, tables, logits)
        positions += 1
    return np.stack(steps, axis=1)


def quantized(config: ModelConfig, tensors: Tensors) -> tuple[ModelConfig, Tensors]:
    """The model that INT8 weights stand for: its embedding is whole, its output matrix is not."""
    matrices = {n: t for n, t in tensors.items() if t.dim() == 2 and n != EMBEDDING}
    matrices[LM_HEAD] = tensors.get(LM_HEAD, tensors[EMBEDDING])
    rough = dict(tensors)
    for name, matrix in matrices.items():
        values = torch.empty(matrix.shape, dtype=torch.int8)
        scales = torch.empty(len(matrix), dtype=torch.float32)
        quantize_rows(matrix, values, scales)
        rough[name] = dequantize_rows(values, scales)
    return msgspec.structs.replace(config, is_embedding_tied=False), rough


def compare(found: torch.Tensor, right: torch.Tensor) -> Comparison:
    """Logits [n, vocab_size] of both models."""
    spread = right.std(1)
    difference = (found - right).abs()
    best = right.topk(2, dim=1).values
    return Comparison(
        difference.amax(1) / spread,
        difference.mean(1) / spread,
        found.argmax(1) == right.argmax(1),
        (best[:, 0] - best[:, 1]) / spread,
    )


def _print(info: ModelInfo, parts: list[tuple[int, Comparison]]) -> None:
    whole = Comparison(*(torch.cat(column) for column in zip(*(c for _, c in parts), strict=True)))
    answered = [c.agrees[length - 1 : -1] for length, c in parts]
    lost = whole.margin[~whole.agrees]
    print(f"{info.name}: INT8 weights against float32, {len(whole.error)} positions")
    print(
        f"logit error over the logits' standard deviation: mean {whole.mean_error.mean():.4f}, "
        f"largest of a row {whole.error.mean():.4f} on average and {whole.error.max():.4f} at most"
    )
    agreed = torch.cat(answered)
    print(
        f"same favourite: {whole.agrees.float().mean():.2%} of all positions, "
        f"{agreed.float().mean():.2%} of the {len(agreed)} that answer"
    )
    print(
        f"margin of the right favourite over the same deviation: median "
        f"{whole.margin.median():.3f}; where INT8 prefers another, at most "
        f"{lost.max() if len(lost) else 0.0:.3f}"
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="one with the demo model's tokenizer")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer, at most")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

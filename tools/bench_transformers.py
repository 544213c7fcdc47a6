"""transformers on a CUDA device: the load of ``tools.bench_device`` in its two quickest forms.

    python -m tools.bench_transformers [--model 8b] [--streams 64] [--prompt 512] [--out 128]

- static cache and CUDA graph: prefill of all prompts in pieces, then one captured step of all rows,
  temperature and top_p by torch in the graph. All prompts are there at once and all answers are
  equally long, which is the best that a static batch can be given.
- its continuous batching (``generate_batch``), greedy.

Weights are random, bfloat16. Prints output tokens per second of each.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CONFIGS = Path(__file__).parent / "configs"
DEVICE = torch.device("cuda")
PREFILL_ROWS = 8
TEMPERATURE, TOP_P = 0.7, 0.9


def main() -> int:
    """Measure both and print."""
    options = _parse()
    model = make_model(str(CONFIGS / f"llama-{options.model}.json"))
    total = options.streams * options.out
    with torch.inference_mode():
        for _ in range(2):  # the first one warms up
            prefill_s, decode_s = run_static(model, options.streams, options.prompt, options.out)
        print(
            f"static cache + graph: {total / (prefill_s + decode_s):.0f} tokens/s (prefill "
            f"{prefill_s:.2f} s, {decode_s / options.out * 1e3:.2f} ms a step)",
            flush=True,
        )
    print(f"continuous batching: {total / run_continuous(model, options):.0f} tokens/s", flush=True)
    return 0


def make_model(path: str) -> LlamaForCausalLM:
    """Random weights, made on the device."""
    config = LlamaConfig.from_json_file(path)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device=DEVICE)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.02)
    model.model.rotary_emb = LlamaRotaryEmbedding(config, device=DEVICE)
    return model.eval()


def sample(logits: torch.Tensor) -> torch.Tensor:
    """[n, vocab] → int64[n, 1]; what top_p warpers do, and a draw without a host read."""
    ordered, order = torch.softmax(logits.float() / TEMPERATURE, -1).sort(-1, descending=True)
    kept = ordered.masked_fill(ordered.cumsum(-1) - ordered >= TOP_P, 0.0)
    noise = torch.empty_like(kept).exponential_()
    return order.gather(1, (kept / noise).argmax(-1, keepdim=True))


def run_static(model: LlamaForCausalLM, streams: int, prompt: int, out: int) -> tuple[float, float]:
    """Seconds of prefill, and of all steps."""
    ids = torch.randint(0, 200, (streams, prompt), device=DEVICE)
    cache = StaticCache(model.config, max_cache_len=prompt + out)
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    last, cache = _prefill(model, ids, cache)
    token = sample(last)
    torch.cuda.synchronize()
    prefilled_s = time.perf_counter()
    position = torch.full((1,), prompt, device=DEVICE)
    graph = torch.cuda.CUDAGraph()

    def step() -> None:
        logits = model(
            token, past_key_values=cache, cache_position=position,
            position_ids=position.expand(streams, 1), use_cache=True,
        ).logits[:, -1]  # fmt: skip
        token.copy_(sample(logits))
        position.add_(1)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    torch.cuda.synchronize()
    captured_s = time.perf_counter()
    for _ in range(out - 1):
        graph.replay()
    torch.cuda.synchronize()
    return prefilled_s - started_s, time.perf_counter() - captured_s


def _prefill(
    model: LlamaForCausalLM, ids: torch.Tensor, cache: StaticCache
) -> tuple[torch.Tensor, StaticCache]:
    """All prompts, a few at a time with dynamic caches; their KV side by side in a static one."""
    last, prompt = [], ids.shape[1]
    layers: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = [
        ([], []) for _ in range(model.config.num_hidden_layers)
    ]
    for start in range(0, len(ids), PREFILL_ROWS):
        output = model(ids[start : start + PREFILL_ROWS], use_cache=True, logits_to_keep=1)
        last.append(output.logits[:, -1])
        for into, layer in zip(layers, output.past_key_values.layers, strict=True):
            into[0].append(layer.keys)
            into[1].append(layer.values)
    places = torch.arange(prompt, device=DEVICE)
    for index, (keys, values) in enumerate(layers):
        cache.update(torch.cat(keys), torch.cat(values), index, {"cache_position": places})
    return torch.cat(last), cache


def run_continuous(model: LlamaForCausalLM, options: argparse.Namespace) -> float:
    """Seconds for all requests, greedy."""
    generation = GenerationConfig(
        max_new_tokens=options.out, eos_token_id=-1, pad_token_id=0, do_sample=False
    )
    prompts = [
        [(number * 131 + i * 7) % 200 for i in range(options.prompt)]
        for number in range(options.streams)
    ]
    elapsed_s = 0.0
    for _ in range(2):  # the first one warms up
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        model.generate_batch(inputs=prompts, generation_config=generation)
        torch.cuda.synchronize()
        elapsed_s = time.perf_counter() - started_s
    return elapsed_s


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="8b", choices=["13b", "8b"])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--out", type=int, default=128)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

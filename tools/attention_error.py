"""How far decode attention on the device is from float32."""

from __future__ import annotations

import torch

from hybridgen.models.kernels.paged_cache import PagedCache
from tools.model_shapes import ModelShape


def attention_error(
    model: ModelShape,
    qkv: torch.Tensor,
    attended: torch.Tensor,
    cache: PagedCache,
    *,
    rope: tuple[torch.Tensor, torch.Tensor],
    position: int,
    tables: torch.Tensor,
) -> float:
    """‖out − ref‖ / ‖ref‖ of the result, and of the new key in the cache, together.

    Args:
        model: its shape.
        qkv: [batch, (num_heads + 2 num_kv_heads) head_dim], not rotated, as attention had it.
        attended: [batch, num_heads · head_dim], the result.
        cache: keys and values, the new ones included.
        rope: cosines and sines, float32[num_positions, head_dim / 2] each.
        position: of the new token, the same in all rows.
        tables: int32[batch, w], KV blocks.
    """
    batch, d, kv = len(qkv), model.head_dim, model.num_kv_heads
    q, k, _ = qkv.float().view(batch, -1, d).split([model.num_heads, kv, kv], 1)
    cos, sin = (table[position].repeat(2) for table in rope)
    q, k = (x * cos + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin for x in (q, k))
    keys, values = (
        memory[tables.long()].transpose(1, 2).reshape(batch, kv, -1, d)[:, :, : position + 1]
        for memory in cache
    )
    keys, values = keys.float(), values.float()
    key_error = float((keys[:, :, position] - k).norm() / k.norm())
    out = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None], keys, values, enable_gqa=True
    ).view(batch, -1)
    return key_error + float((attended.float() - out).norm() / out.norm())

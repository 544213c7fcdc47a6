"""The Llama block on a CUDA device: weights, paged KV cache, one graph per batch bucket."""

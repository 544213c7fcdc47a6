"""Kernels of the CUDA device, in Triton: what steps and prefill need beside the libraries.

Kernels inside a step read lengths, positions and block tables from device memory and have a grid
that depends on the number of rows alone, so that they can be captured into CUDA graphs. Arithmetic
is compared with float64; cuts and choices of tokens with the native sampler, bit for bit.
"""

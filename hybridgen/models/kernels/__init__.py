"""Kernels of the CUDA device, in Triton: what one decode step needs beside cuBLAS.

Every kernel reads lengths, positions and block tables from device memory and has a fixed grid, so
that it can be captured into a CUDA graph. Every kernel is compared with a float64 oracle.
"""

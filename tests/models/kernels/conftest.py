from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any import of one

import pytest

pytest.importorskip("triton", reason="kernels of the CUDA device need triton; none is installed")

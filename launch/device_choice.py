"""Which device ``--device auto`` means here, and why; torch is not imported for it.

What the gpu process would need is looked at from the cheapest on: the packages, by their metadata;
then the driver, in a child with a time limit, since a driver may hang, and keeps memory and threads
in whoever asks it once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from hybridgen.config import Config

PROBE_TIMEOUT_S = 30.0
#: Compute capability from which on there are bfloat16 products and flash attention.
LEAST_CAPABILITY = 8.0
#: What the extra ``cuda`` installs beside torch.
PACKAGES = ("triton", "cuda-bindings")

# Prints "capability driver bytes name" of the first visible device, or what is missing.
_PROBE = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit("no NVIDIA driver (libcuda.so.1) is installed")
def ask(name, *arguments):
    number = ctypes.c_int()
    status = getattr(cuda, name)(ctypes.byref(number), *arguments)
    return number.value if status == 0 else sys.exit(f"{name} failed with CUDA error {status}")
status = cuda.cuInit(0)
if status:
    sys.exit(f"the NVIDIA driver cannot be used (cuInit: CUDA error {status})")
if ask("cuDeviceGetCount") == 0:
    sys.exit("the NVIDIA driver shows no device")
device = ask("cuDeviceGet", 0)
name, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
cuda.cuDeviceGetName(name, 256, device)
cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
major, minor = (ask("cuDeviceGetAttribute", which, device) for which in (75, 76))
version = ask("cuDriverGetVersion")
driver = f"{version // 1000}.{version % 1000 // 10}"
print(f"{major}.{minor}", driver, size.value, name.value.decode())
"""


class DeviceChoice(NamedTuple):
    """A device, and in half a sentence why it."""

    device: Literal["cpu", "cuda"]
    reason: str


def resolve_device(
    config: Config, model_kind: str, find: Callable[[], DeviceChoice] | None = None
) -> tuple[Config, str]:
    """The configuration with a device in it, and for ``auto`` why that one, for people.

    Args:
        config: as the user gave it.
        model_kind: ``mock`` has no arithmetic for a device.
        find: what ``auto`` means on this machine; ``find_device`` when None.
    """
    if config.device.device != "auto":
        return config, ""
    if model_kind == "mock":
        choice = DeviceChoice("cpu", "the mock model needs no device")
    else:
        choice = (find or find_device)()
    device = msgspec.structs.replace(config.device, device=choice.device)
    return msgspec.structs.replace(config, device=device), choice.reason


def find_device() -> DeviceChoice:
    """``cuda`` where the gpu process could use a device, else ``cpu``."""
    cuda_version = _torch_cuda_version()
    if cuda_version is None:
        return DeviceChoice("cpu", "the installed torch has no CUDA support")
    missing = [name for name in PACKAGES if not _is_installed(name)]
    if missing:
        extra = "pip install 'hybridgen[cuda]'"
        return DeviceChoice("cpu", f"{', '.join(missing)} not installed ({extra})")
    return judge_probe(*run_probe())


def judge_probe(said: str, is_good: bool) -> DeviceChoice:
    """What follows from the probe's answer."""
    if not is_good:
        return DeviceChoice("cpu", said)
    capability, driver, size, name = said.split(" ", 3)
    device = f"{name}, {int(size) / (1 << 30):.1f} GiB, driver for CUDA {driver}"
    if float(capability) < LEAST_CAPABILITY:
        limit = f"compute capability {capability}, at least {LEAST_CAPABILITY} is needed"
        return DeviceChoice("cpu", f"{device}: {limit}")
    return DeviceChoice("cuda", device)


def probed_bytes(said: str) -> int:
    """Memory of the device that a good probe has found."""
    return int(said.split(" ", 3)[2])


def run_probe(code: str = _PROBE, timeout_s: float = PROBE_TIMEOUT_S) -> tuple[str, bool]:
    """(what the child said, whether there is a device); it ends with the call."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the NVIDIA driver did not answer within {timeout_s:.0f} s", False
    said = (done.stdout if done.returncode == 0 else done.stderr).strip()
    last = said.splitlines()[-1] if said else f"the driver's probe ended with {done.returncode}"
    return last, done.returncode == 0


def _torch_cuda_version() -> str | None:
    """The CUDA version that torch was built for, read from its files."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("version.py")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]+)['\"]", text, re.MULTILINE)
    return None if found is None else found[1]


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

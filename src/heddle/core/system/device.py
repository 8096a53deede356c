"""Device and dtype, decided once per run, with what the chip can do for the MFU figure."""

import platform
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.core.errors import ALIASES, ConfigError, nearest

if TYPE_CHECKING:  # imported where it is used: commands that compute nothing do not wait for it
    import torch

DTYPES = ("float32", "bfloat16", "float64", "float16")

# Dense bf16 rates from the vendors' data sheets; MFU is counted against these.
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "4090": 165e12}


@dataclass(frozen=True)
class Hardware:
    """Where a model computes, and in which dtype; loaded for use it keeps its weights in it, in training in float32."""

    device: "torch.device"
    dtype: "torch.dtype"

    @property
    def name(self) -> str:
        """Name the chip."""
        import torch

        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return platform.processor() or platform.machine()


def choose_hardware(device: str = "auto", dtype: str = "auto") -> Hardware:
    """Turn the words of a config into a device and a compute dtype."""
    import torch

    chosen = _device(device)
    if dtype == "auto":
        return Hardware(chosen, torch.bfloat16 if _has_bfloat16(chosen) else torch.float32)
    if dtype not in DTYPES:
        raise ConfigError("dtype", want=f"auto or one of {', '.join(DTYPES)}", got=dtype, near=nearest(dtype, DTYPES))
    return Hardware(chosen, getattr(torch, dtype))


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    known = ["auto", "cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if name == "cpu" or (kind == "cuda" and (f"cuda:{index or 0}") in known):
        return torch.device(name)
    meant = kind == "cuda" or ALIASES.get(kind.lower()) == "cuda"
    why = " (torch finds no CUDA device)" if meant and len(known) == 2 else ""
    near = None if kind == "cuda" else nearest(name, known)
    raise ConfigError("device", want=f"one of {', '.join(known)}{why}", got=name, near=near)


def _has_bfloat16(device: "torch.device") -> bool:
    import torch

    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return cpu_has_bfloat16()


@cache
def cpu_has_bfloat16() -> bool:
    """Tell whether this CPU multiplies bf16 matrices in hardware; elsewhere bf16 is slower than fp32."""
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return "avx512_bf16" in words or "amx_bf16" in words


def peak_flops(hardware: Hardware) -> float:
    """Return the chip's matrix rate: from the data sheet on a known GPU, measured elsewhere."""
    import torch

    words = hardware.name.replace("-", " ").split() if hardware.device.type == "cuda" else []
    known = [PEAKS[word] for word in words if word in PEAKS and hardware.dtype is torch.bfloat16]
    return known[0] if known else _measured_flops(hardware)


@cache
def _measured_flops(hardware: Hardware) -> float:
    import torch

    side = 1024
    left, right = (torch.randn(side, side, device=hardware.device).to(hardware.dtype) for _ in range(2))
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        (left @ right).sum().item()
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best

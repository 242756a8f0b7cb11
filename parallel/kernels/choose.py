"""The kernels there are, and which of them serves."""

from torch import Tensor

from common.errors import ConfigError
from parallel.kernels.base import AnyKernel, Kernel
from parallel.kernels.cpu import CpuFlashKernel
from parallel.kernels.cuda import CudnnKernel, FlashKernel, VarlenFlashKernel
from parallel.kernels.eager import EagerKernel

FLASH_MIN_KEYS = 64
"""Below, the eager kernel is the faster one on the CPU."""

KERNELS: dict[str, AnyKernel] = {
    "eager": EagerKernel(),
    "cpu_flash": CpuFlashKernel(),
    "flash": FlashKernel(),
    "flash_varlen": VarlenFlashKernel(),
    "cudnn": CudnnKernel(),
}
"""By the name under which a configuration asks for one."""

_EAGER, _CPU, _FLASH, _VARLEN = EagerKernel(), CpuFlashKernel(), FlashKernel(), VarlenFlashKernel()


def kernel_named(name: str, q: Tensor, k: Tensor) -> AnyKernel:
    """Raises `ConfigError` that says why where it cannot serve such tensors."""
    if name not in KERNELS:
        raise ConfigError(f"attention kernel {name} is none of {', '.join(KERNELS)}")
    reason = KERNELS[name].refusal(q, k)
    if reason is not None:
        able = [other for other, kernel in KERNELS.items() if kernel.refusal(q, k) is None]
        raise ConfigError(f"attention kernel {name} {reason}; here serve {', '.join(able)}")
    return KERNELS[name]


def native_kernel(q: Tensor, k: Tensor) -> VarlenFlashKernel | None:
    """The kernel that takes packed tokens as they lie, where there is one for such tensors."""
    return _VARLEN if q.is_cuda and _VARLEN.refusal(q, k) is None else None


def fitting_kernel(q: Tensor, k: Tensor, num_keys: int) -> Kernel:
    """For a dense batch, what is fastest of the kernels that run here."""
    if q.is_cuda and _FLASH.refusal(q, k) is None:
        return _FLASH
    if q.device.type == "cpu" and num_keys >= FLASH_MIN_KEYS:
        return _CPU
    return _EAGER

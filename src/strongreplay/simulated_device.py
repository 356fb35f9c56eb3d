"""A simulated device: tensors that compute on the CPU, but behave as if they were on another device.

    with SimulatedDevice() as device:
        method.to(device.name)
        with device.step():
            method.observe(batch, optimizer)

It refuses operations that mix its tensors with tensors of the CPU, refuses to be read within a step
(`.item()`, `bool(tensor)`, `.cpu()`, `.tolist()`, `.numpy()`, boolean masks, `nonzero`, ...), and counts
transfers. An error names the file and the line. It is not CUDA: it has no streams, no kernels and no memory
of its own, it says nothing about speed, and what a CUDA kernel refuses or rounds differently passes here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import rename_privateuse1_backend

from strongreplay.errors import RunError

NAME = "simulated"
aten = torch.ops.aten
# These need values on the host, so a real device waits for all work before them.
READS = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.equal,
    aten.unique_consecutive, aten.bincount, aten.is_nonzero, aten._linalg_check_errors, aten.item,
}  # fmt: skip
COPIES = {aten.copy_, aten._to_copy, aten.copy}
INDEXING = {aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_}  # these copy indices
OWN_FOLDERS = (str(Path(torch.__file__).parent), __file__)


class DeviceFault(RunError):
    """Something that fails or waits on a real device."""


def caller() -> str:
    """File and line of the innermost frame that is neither PyTorch's nor in this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class SimulatedTensor(Tensor):
    """A CPU tensor that says it is on the simulated device."""

    device = property(lambda self: torch.device(NAME, 0))
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is one_hot:  # PyTorch's makes a tensor where it believes its input to be, on the CPU
            return (args[0][..., None] == torch.arange(args[1], device=args[0].device)).long()
        if func is Tensor.to and len(args) > 1 and isinstance(args[1], SimulatedTensor):
            return args[0].to(device=args[1].device, dtype=args[1].dtype)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return SimulatedDevice.current().compute(func, args, kwargs or {})

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype)
        options = {key: value for key, value in kwargs.items() if key != "copy"}
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **options)
        here = device is None or device.type == NAME
        tensor = self if here else SimulatedDevice.current().to_host(self)
        rest: dict[str, Any] = {"memory_format": layout} if layout else {}
        return Tensor.to(tensor, dtype or self.dtype, copy=kwargs.get("copy", False), **rest)

    def cpu(self, *args: Any) -> Tensor:
        return SimulatedDevice.current().to_host(self)

    def tolist(self) -> Any:
        return SimulatedDevice.current().to_host(self).tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise DeviceFault(f"{caller()}: .numpy() of a tensor on the device; move it first, outside of a step")

    def __array__(self, *args: Any) -> Any:
        raise DeviceFault(f"{caller()}: NumPy reads a tensor on the device; move it first, outside of a step")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copied._is_param = True
        memo[id(self)] = copied
        return copied

    def __repr__(self, **unused: Any) -> str:  # type: ignore[override]
        return f"SimulatedTensor({tuple(self.shape)}, {self.dtype})"


class SimulatedDevice(TorchDispatchMode):
    """Within its context, `torch.device("simulated")` can be used, one device at a time."""

    active: ClassVar[list["SimulatedDevice"]] = []

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        register()
        self.name = torch.device(NAME, 0)
        self.num_to_device = self.num_to_host = self.bytes_to_device = self.bytes_to_host = 0
        self.in_step = False

    @classmethod
    def current(cls) -> "SimulatedDevice":
        if not cls.active:
            raise DeviceFault(f"{caller()}: a tensor of the simulated device is used outside of its context")
        return cls.active[-1]

    def __enter__(self) -> Self:
        self.before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)  # module.to() keeps its parameters
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) is a transfer
        self.active.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.active.pop()
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_swap_module_params_on_conversion(self.before)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Within the context, reading values is an error."""
        self.in_step, before = True, self.in_step
        try:
            yield
        finally:
            self.in_step = before

    def to_host(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU; an error within a step."""
        if self.in_step:
            raise DeviceFault(f"{caller()}: a step copies a tensor to the host, and waits for the device")
        self.num_to_host, self.bytes_to_host = self.num_to_host + 1, self.bytes_to_host + tensor.nbytes
        with unmarked():
            return torch.empty_like(tensor.as_subclass(Tensor)).copy_(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.compute(func, args, kwargs or {})

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = any(isinstance(tensor, SimulatedTensor) for tensor in tensors)
        wanted = kwargs.get("device")
        asked = wanted is not None and torch.device(wanted).type == NAME
        if asked:
            kwargs = kwargs | {"device": torch.device("cpu")}
        if here or asked:
            self.check(func, tensors, kwargs, moving=asked and not here)
        with unmarked():
            found = func(*args, **kwargs)
        # A copy into a tensor of the CPU stays there.
        on_host = tensors and func.overloadpacket is aten.copy_ and not isinstance(args[0], SimulatedTensor)
        return tree_map(mark, found) if (here or asked) and not on_host else found

    def check(self, func: Any, tensors: list[Tensor], kwargs: dict[str, Any], moving: bool) -> None:
        kind = func.overloadpacket
        strangers = [each for each in tensors if not isinstance(each, SimulatedTensor) and each.dim()]
        if kind in COPIES and (moving or strangers):
            self.count(kind, tensors)
        elif kind in INDEXING:
            self.check_indices(kind, tensors, strangers)
        elif strangers and not moving:
            raise DeviceFault(f"{caller()}: {func} mixes tensors of the device and of the CPU")
        if kwargs.get("generator") is not None:
            raise DeviceFault(f"{caller()}: {func} draws on the device with a generator of the CPU")
        if kind in READS and self.in_step:
            raise DeviceFault(f"{caller()}: {func} reads values within a step, and waits for the device")

    def count(self, kind: Any, tensors: list[Tensor]) -> None:
        if kind is aten.copy_ and not isinstance(tensors[0], SimulatedTensor):
            self.to_host(tensors[1])
            return
        self.to_device(tensors[-1])

    def to_device(self, tensor: Tensor) -> None:
        self.num_to_device += 1
        self.bytes_to_device += tensor.nbytes

    def check_indices(self, kind: Any, tensors: list[Tensor], strangers: list[Tensor]) -> None:
        if not isinstance(tensors[0], SimulatedTensor):
            raise DeviceFault(f"{caller()}: a tensor of the CPU is indexed by one of the device")
        for each in strangers:  # PyTorch copies indices to the device
            self.to_device(each)
        masks = any(each.dtype == torch.bool for each in tensors[1:] if each.dim())
        if kind is aten.index and masks and self.in_step:
            raise DeviceFault(f"{caller()}: a step indexes by a boolean mask, and waits for the device")


def unmarked() -> Any:
    """Within the context, simulated tensors are plain ones."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    return torch._C._ExcludeDispatchKeyGuard(keys.add(torch._C.DispatchKey.PythonTLSSnapshot))


def mark(value: Any) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, SimulatedTensor):
        return value
    return Tensor._make_subclass(SimulatedTensor, value)


def register() -> None:
    """Give the name to PyTorch's device for such uses; it can be given once in a process."""
    if hasattr(torch, NAME):
        return
    rename_privateuse1_backend(NAME)
    module: Any = ModuleType(f"torch.{NAME}")
    module._lazy_init = lambda: None
    module.is_available = lambda: False  # no accelerator: nothing else in PyTorch may take it for one
    module.device_count = lambda: 0
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    torch._register_device_module(NAME, module)

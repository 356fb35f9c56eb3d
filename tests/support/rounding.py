"""Which machine computes: another processor, instruction set or torch adds up in another order."""

import torch

from strongreplay.runs.machine import processor_name


def machine_kind(
    processor: str | None = None, instructions: str | None = None, torch_version: str | None = None
) -> str:
    """Machines of one kind compute the same bits; by default, the kind of this one."""
    parts = (
        processor or processor_name(),
        instructions or torch.backends.cpu.get_cpu_capability(),
        torch_version or str(torch.__version__),
    )
    return ", ".join(parts)

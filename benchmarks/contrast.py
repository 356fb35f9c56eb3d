"""Cost of Co2L's two losses in one step, contrast and distillation, forward and backward, in milliseconds.

Their three matrix products are timed alternately with the whole, to tell a busy machine from slow code.

python benchmarks/contrast.py [--vectors 512] [--threads 2] [--usual-memory]
"""

import argparse
import time
from statistics import median

import torch
from torch.nn.functional import normalize

from strongreplay.methods.co2l_parts import NUM_PROJECTED, contrast, distil, losses
from strongreplay.training.devices import keep_freed_memory


def measure(count: int, rounds: int = 100) -> tuple[list[float], list[float]]:
    """Milliseconds of each round, and of its matrix products only; the first rounds are not counted."""
    generator = torch.Generator().manual_seed(0)
    vectors, old = normalize(torch.randn(2, count, NUM_PROJECTED, generator=generator), dim=2)
    vectors.requires_grad_()
    labels = torch.randint(10, (count // 2,), generator=generator).repeat(2)
    current = torch.arange(10) >= 8
    times, products = [], []
    for _ in range(rounds + 5):
        start = time.perf_counter()
        goals = contrast(vectors, labels, current, 0.5), distil(old, 0.2 / 0.5, 0.01)
        torch.autograd.grad(losses(vectors, 0.5, *goals), vectors)
        times.append(1e3 * (time.perf_counter() - start))
        with torch.no_grad():
            start = time.perf_counter()
            (vectors @ vectors.t()) @ vectors
            old @ old.t()
            products.append(1e3 * (time.perf_counter() - start))
    return times[5:], products[5:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vectors", type=int, default=512, help="number of vectors, two per image")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--usual-memory", action="store_true", help="return freed memory to the system, unlike in training"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.usual_memory:
        keep_freed_memory()  # as training does
    times, products = measure(options.vectors)
    print(
        f"{options.vectors} vectors: median {median(times):.2f} ms, best {min(times):.2f} ms; "
        f"products alone {median(products):.2f} ms"
    )


if __name__ == "__main__":
    main()

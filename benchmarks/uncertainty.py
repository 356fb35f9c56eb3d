"""Cost of Rainbow Memory's uncertainty, relative to one plain forward pass over the same images.

It needs a forward pass for each of twelve perturbed copies, so 12 is the minimum; the rest is perturbation
and normalisation. It measures processor time, so other load matters little; the result is the median.

    python benchmarks/uncertainty.py [--images 1000] [--rounds 3] [--threads 1] [--perturbations rand|vr]
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from strongreplay.data.streams import PREPROCESSING
from strongreplay.data.views import normalise
from strongreplay.methods.base import predict_all
from strongreplay.methods.rm import RM, RMConfig
from strongreplay.nets import build_net
from strongreplay.protocol import Problem, derive_generator


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=20, help="width of the ResNet18")
    parser.add_argument("--perturbations", choices=["rand", "vr"], default="rand")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    view = normalise(PREPROCESSING["cifar10"].mean, PREPROCESSING["cifar10"].std)
    net = build_net("resnet18", (3, 32, 32), 10, derive_generator(0, "net"), width=options.width)
    method = RM(net, Problem(10, 5, view, view), RMConfig(perturbations=options.perturbations))
    shape = (options.images, 3, 32, 32)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    predict_all(net, images[:500], view)
    ratios = []
    for _ in range(options.rounds):
        before = seconds(lambda: predict_all(net, images, view))
        doubting = seconds(lambda: method.doubt(images))
        plain = (before + seconds(lambda: predict_all(net, images, view))) / 2
        ratios.append(doubting / plain)
        print(f"{ratios[-1]:.2f} forwards (a plain one takes {plain:.2f} s)", flush=True)
    print(f"median: {median(ratios):.2f} forwards over {options.images} images")


if __name__ == "__main__":
    main()

"""Groups of unlike samples that lie as close together as samples of one class."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FEWEST = 5  # samples of a group
NUM_EXAMPLES = 12
MOST = 20  # groups


@dataclass(frozen=True, slots=True)
class Cluster:
    samples: int
    spread: float  # mean cosine distance to the centre
    examples: tuple[str, ...]  # names, the nearest to the centre first
    rows: tuple[int, ...]  # of the examples, among the given features


def typical_distance(features: Tensor, columns: Tensor) -> float:
    """The median cosine distance between two samples of one class; infinite if no class has two."""
    likeness = features @ features.T
    is_pair = columns[:, None] == columns[None, :]
    is_pair &= ~torch.eye(len(columns), dtype=torch.bool)
    found = 1 - likeness[is_pair]
    return float(found.median()) if len(found) else float("inf")


def find_clusters(features: Tensor, names: Sequence[str], radius: float) -> list[Cluster]:
    """Groups with a mean distance of at most `radius` between them, the largest first."""
    if len(features) < FEWEST:
        return []
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    # Features of length 1: half of the squared distance is the cosine distance.
    tree = linkage(pdist(features.double().numpy(), "sqeuclidean") / 2, "average")
    groups = torch.from_numpy(fcluster(tree, radius, "distance")).long()
    found = []
    for number in groups.unique().tolist():
        rows = (groups == number).nonzero().flatten()
        if len(rows) < FEWEST:
            continue
        centre = torch.nn.functional.normalize(features[rows].mean(0), dim=0)
        away = 1 - features[rows] @ centre
        nearest = rows[away.argsort(stable=True)[:NUM_EXAMPLES]].tolist()
        examples = tuple(names[row] for row in nearest)
        found.append(Cluster(len(rows), float(away.mean()), examples, tuple(nearest)))
    return sorted(found, key=lambda cluster: -cluster.samples)[:MOST]

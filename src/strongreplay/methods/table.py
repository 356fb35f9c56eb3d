"""METHOD_ROWS: the built-in methods, one row each. Does not import torch.

A new method is one file and one row. Lists, tables, figures and docs use its labels, colours and order.
"""

import hashlib
from keyword import iskeyword
from typing import Any

from strongreplay.methods.row import ALL_SCENARIOS, MethodRow

__all__ = ["ALL_SCENARIOS", "METHOD_ROWS", "MethodRow", "method_label", "style_number"]

DISJOINT = ("class-il", "task-il")  # every task has classes of its own
# What methods need
BOUNDARIES = ("boundaries",)
NUM_TASKS = (*BOUNDARIES, "number of tasks")
CLASSES = (*BOUNDARIES, "classes of each task")
TASKS_AND_CLASSES = (*NUM_TASKS, "classes of each task")
AUXILIARY = (*CLASSES, "auxiliary images")
PRETRAINED = (*CLASSES, "pretrained weights")
REGULARISED, DISTILLING = "regularisation", "replay and distillation"  # families
# Okabe and Ito's palette, made for colour-blind readers, without yellow, which fades on white, and without
# black; then a purple and a brown. Grey is for lines that stay in the background.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9467BD", "#8C564B")


def method_label(name: str) -> str:
    """What tables print for a method: its label, or the part of `mine.py:Thing` after the colon."""
    row = METHOD_ROWS.get(name)
    return row.label if row else name.rpartition(":")[2]


def style_number(name: str) -> int:
    """The number of a method's colour and marker, which it has in every figure where they are free."""
    row = METHOD_ROWS.get(name)
    if row is not None and row.style is not None:
        return row.style
    return len(METHOD_ROWS) + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 1000


def row(name: str, label: str, family: str, paper: str, **rest: Any) -> MethodRow:
    """A row; without `code`, the class is named like the label and the file like the method."""
    module, class_name = name.replace("-", "_"), label.replace("-", "").replace("+", "P")
    path = f".{module}{'_' * iskeyword(module)}:{class_name[0].upper()}{class_name[1:]}"
    return MethodRow(name, label, rest.pop("code", path), family=family, paper=paper, **rest)


def disjoint(name: str, label: str, family: str, paper: str, **rest: Any) -> MethodRow:
    """The row of a method for tasks whose classes belong to them alone."""
    usual = {"needs": CLASSES, "scenarios": DISJOINT, "refusal": "needs disjoint classes per task"}
    return row(name, label, family, paper, **usual | rest)


ROWS = (
    row("sgd", "SGD", "bound", "-", style=0, grows=True).texts(
        "fine-tune on each task in turn: the lower bound", "nothing", "1 / 1"
    ),
    row("joint", "Joint", "bound", "-", style=16, code=".sgd:SGD", needs=("all data",), on_union=True).texts(
        "train on all tasks at once: the upper bound", "nothing", "1 / 1"
    ),
    row("oewc", "oEWC", REGULARISED, "Schwarz et al. 2018", style=14, needs=BOUNDARIES, cost=1.3).texts(
        "penalise changes of important weights (Fisher information)", "two per-weight vectors", "1 / 1"
    ),
    row("si", "SI", REGULARISED, "Zenke et al. 2017", style=15, needs=BOUNDARIES, cost=1.4).texts(
        "the same, with importance from the path integral", "three per-weight vectors", "1 / 1"
    ),
    disjoint("lwf", "LwF", REGULARISED, "Li and Hoiem 2016", style=13, cost=1.4).texts(
        "distil the old net's outputs on new images", "a table of outputs", "1 / 1"
    ),
    row("ncm", "NCM", "frozen features", "Mensink et al. 2013", style=29, cost=0.3, grows=True).texts(
        "the nearest class mean of features that are not trained", "class means", "1 / 0, one epoch"
    ),
    row("slda", "SLDA", "frozen features", "Hayes and Kanan 2020", style=30, cost=0.4, grows=True).texts(
        "linear discriminant analysis of features that are not trained",
        "class means, one covariance",
        "1 / 0, one epoch",
    ),
    row("er", "ER", "replay", "Riemer et al. 2019", style=2, cost=2, grows=True).texts(
        "replay stored samples", "memory", "1 / 1 on B + m"
    ),
    row("gem", "GEM", "gradient", "Lopez-Paz and Ranzato 2017", style=8, needs=NUM_TASKS, cost=6).texts(
        "correct the gradient so that no past task's loss rises", "memory by task", "t + 1 / t + 1"
    ),
    row("agem", "A-GEM", "gradient", "Chaudhry et al. 2019", style=9, needs=NUM_TASKS, cost=2.2).texts(
        "correct the gradient so that the loss on a replayed batch does not rise", "memory", "2 / 2"
    ),
    disjoint("icarl", "iCaRL", DISTILLING, "Rebuffi et al. 2017", style=6, cost=2).texts(
        "distillation, herded exemplars, nearest-mean classification", "herded memory, old net", "2 / 1"
    ),
    row("fdr", "FDR", DISTILLING, "Benjamin et al. 2019", style=10, needs=BOUNDARIES, cost=2.5).texts(
        "match the probabilities predicted at the end of each task", "memory with logits", "2 / 2, two steps"
    ),
    row("gss", "GSS", "replay", "Aljundi et al. 2019", style=11, cost=6).texts(
        "store samples with diverse gradients", "memory with scores", "1 / 1 on B + m, then scoring"
    ),
    row("hal", "HAL", "replay", "Chaudhry et al. 2021", style=12, needs=CLASSES, cost=3.5).texts(
        "replay, and keep the outputs for learnt anchors", "memory, anchors", "4 / 2"
    ),
    disjoint("ert", "ERT", "replay", "Buzzega et al. 2020", style=7, cost=2.2).texts(
        "ER with five tricks", "memory with losses, bias layer", "1 / 1 on B + m"
    ),
    row("der", "DER", DISTILLING, "Buzzega et al. 2020", style=4, cost=2, grows=True).texts(
        "match stored logits", "memory with logits", "2 / 1"
    ),
    row("derpp", "DER++", DISTILLING, "Buzzega et al. 2020", style=3, cost=3, grows=True).texts(
        "match stored logits and labels", "memory with logits", "3 / 1"
    ),
    disjoint(
        "rm",
        "RM",
        "replay",
        "Bang et al. 2021",
        style=18,
        refusal="is published for disjoint classes per task only",
        cost=2,
    ).texts(
        "replay samples that span the range of uncertainty, strongly augmented",
        "memory by class",
        "1 / 1 on a joined batch of B; 12 forward passes over each task at its end",
    ),
    row("clser", "CLS-ER", DISTILLING, "Arani et al. 2022", style=5, cost=4, grows=True).texts(
        "replay, and match the more confident of two averaged nets",
        "memory, two averaged nets",
        "4 / 1, two without gradient",
    ),
    disjoint(
        "tamil",
        "TAMiL",
        DISTILLING,
        "Bhat et al. 2023",
        style=17,
        needs=BOUNDARIES,
        refusal="needs task identity in training, so the SER paper leaves it out of Domain-IL",
        cost=5,
    ).texts(
        "gate features by task, and match an averaged net",
        "memory with tasks, gates by task, averaged net",
        "5 / 1, two without gradient",
    ),
    disjoint("lvt", "LVT", "architecture", "Wang et al. 2022", style=20, cost=2, net="lvt").texts(
        "external attention keys, two heads, replay of confident samples; a reconstruction",
        "memory by class with logits, importance of attention",
        "1 / 1 on B + m; gradients over each task at its end",
    ),
    disjoint("co2l", "Co2L", DISTILLING, "Cha et al. 2021", style=19, cost=4).texts(
        "contrastive loss, distilled similarities, then a linear head",
        "memory by class, old net",
        "2 / 1 on two views of B, one without gradient; a linear probe after each task",
    ),
    row("ser", "SER", DISTILLING, "Zhuo et al. 2023", style=1, needs=BOUNDARIES, cost=2.4, grows=True).texts(
        "replay, backward and forward consistency",
        "memory with logits, old net",
        "3 / 1, one without gradient",
    ),
    disjoint("dernet", "DERNet", "architecture", "Yan et al. 2021", style=31, cost=3).texts(
        "a feature extractor for each task, earlier ones frozen, and a classifier of them all",
        "herded memory, an extractor for each task",
        "t + 1 / 1, t without gradient; the classifier alone after each task",
    ),
    row(
        "pnn",
        "PNN",
        "architecture",
        "Rusu et al. 2016",
        style=32,
        needs=CLASSES,
        scenarios=("task-il",),
        refusal="needs the task of a sample to choose the net that answers",
        cost=4,
    ).texts(
        "a net for each task, which also gets the features of all earlier ones; they are frozen",
        "a net for each task",
        "t + 1 / 1, t without gradient",
    ),
    disjoint("foster", "FOSTER", "architecture", "Wang et al. 2022", style=33, cost=3).texts(
        "a second extractor learns what the old net misses, then both are distilled into one net",
        "herded memory, old net; the boosted net until the next task",
        "2 / 1, one without gradient; then 3 / 1, two without, in compression",
    ),
    disjoint("abd", "ABD", DISTILLING, "Smith et al. 2021", style=34, needs=TASKS_AND_CLASSES, cost=5).texts(
        "images generated by inverting the old net; new classes compete with each other alone",
        "old net, generator",
        "2 / 1 on 2 B, one without gradient; B generated images; the generator after each task",
    ),
    row("dgr", "DGR", "replay", "Shin et al. 2017", style=35, needs=BOUNDARIES, cost=5).texts(
        "replay images of a generator that is trained beside the net, labelled by the old net",
        "generator, copies of net and generator",
        "3 / 1, one without gradient, and the same of the generator",
    ),
    disjoint("dmc", "DMC", REGULARISED, "Zhang et al. 2020", style=36, needs=AUXILIARY, cost=3).texts(
        "a fresh net learns the task, then a fresh student matches it and the old net elsewhere",
        "nothing but the net",
        "1 / 1; then 3 / 1, two without gradient, on auxiliary images",
    ),
    disjoint("gd", "GD", DISTILLING, "Lee et al. 2019", style=38, needs=AUXILIARY, cost=8).texts(
        "distil old net, a teacher of the new classes and both joined, also on unlabelled images",
        "random memory by class",
        "1 / 1 for a teacher; then 3 / 1, two without gradient; then the head; all on 2 B images",
    ),
    disjoint("dri", "DRI", DISTILLING, "Wang et al. 2022", style=37, cost=4).texts(
        "DER++ with a balanced memory, a metric loss and mixed images; a reconstruction",
        "herded memory with logits, old net",
        "4 / 1, one without gradient",
    ),
    row("er-ace", "ER-ACE", "replay", "Caccia et al. 2022", style=21, cost=2, grows=True).texts(
        "replay; new samples compete only with classes of their batch and unseen ones", "memory", "2 / 1"
    ),
    disjoint(
        "xder", "X-DER", DISTILLING, "Boschini et al. 2022", style=22, needs=TASKS_AND_CLASSES, cost=10
    ).texts(
        "DER++ with stored logits kept up to date and heads prepared for future classes",
        "memory by class with logits",
        "3 / 1, and one on strong views of B + 64 images; forward passes at each task's end",
    ),
    row("mir", "MIR", "replay", "Aljundi et al. 2019", style=23, needs=BOUNDARIES, cost=5, grows=True).texts(
        "replay the samples that the coming step would hurt most",
        "memory with tasks",
        "4 / 2, two without gradient on 5 m candidates",
    ),
    row(
        "ewc", "EWC", REGULARISED, "Kirkpatrick et al. 2017", style=24, needs=BOUNDARIES, cost=1.5, grows=True
    ).texts(
        "penalise changes of weights that mattered, with an anchor for each task",
        "two per-weight vectors",
        "1 / 1; gradients over each task at its end",
    ),
    row(
        "rwalk",
        "RWalk",
        REGULARISED,
        "Chaudhry et al. 2018",
        style=25,
        needs=BOUNDARIES,
        cost=2.5,
        grows=True,
    ).texts(
        "penalise changes of weights by Fisher information and by how far they lowered the loss",
        "eight per-weight vectors, memory",
        "1 / 1 on B + m",
    ),
    row("mer", "MER", "replay", "Riemer et al. 2019", style=26, cost=100, own_steps=True).texts(
        "steps on single samples of stream and memory, then a part of the way (Reptile)",
        "memory",
        "(k + 1) s / (k + 1) s on single samples, for each sample of B",
    ),
    row(
        "scommer",
        "SCoMMER",
        DISTILLING,
        "Sarfraz et al. 2023",
        style=27,
        needs=BOUNDARIES,
        cost=4,
        grows=True,
    ).texts(
        "sparse activations, dropout of channels that other classes use, and an averaged net",
        "memory, averaged net, counts of channels by class",
        "3 / 1, one without gradient",
    ),
    disjoint("pass", "PASS", REGULARISED, "Zhu et al. 2021", style=28, cost=6).texts(
        "prototypes with noise in place of images, quarter turns as classes, features held",
        "a mean feature for each class, old net",
        "2 / 1 on four turns of B, one without gradient",
    ),
    row(
        "l2p",
        "L2P",
        "prompts",
        "Wang et al. 2022",
        style=39,
        needs=PRETRAINED,
        cost=1.5,
        grows=True,
        net="vit",
    ).texts(
        "a frozen ViT gets learnt prompts, chosen from a pool by the image's own features",
        "a pool of prompts with keys",
        "2 / 1, one without gradient; weights of the body have none",
    ),
    row(
        "dualprompt",
        "DualPrompt",
        "prompts",
        "Wang et al. 2022",
        style=40,
        needs=PRETRAINED,
        cost=1.5,
        grows=True,
        net="vit",
    ).texts(
        "a frozen ViT gets prompts in its blocks: general ones, and experts for each task",
        "general prompts, expert prompts with a key for each task",
        "2 / 1, one without gradient; weights of the body have none",
    ),
)
METHOD_ROWS: dict[str, MethodRow] = {each.name: each for each in ROWS}

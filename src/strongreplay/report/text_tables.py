"""Tables as lines of Markdown and of LaTeX."""

from collections.abc import Iterable, Sequence

ESCAPED = str.maketrans(
    {sign: f"\\{sign}" for sign in "%&_#${}"}
    | {"±": r"$\pm$", "→": r"$\to$", "<": "$<$", ">": "$>$", "^": r"\^{}", "~": r"\~{}"}
    | {"\\": r"\textbackslash{}"}
)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def latex_table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str, title: str) -> list[str]:
    """A tabular for \\input, with the title as a comment; `align` is such as "lrr". Rows are LaTeX."""
    lines = [map(escape_latex, columns), *rows]
    head, *body = (" & ".join(line) + r" \\" for line in lines)
    opening = [
        *([f"% {escape_latex(title)}"] if title else []),
        rf"\begin{{tabular}}{{{align}}}",
        r"\hline",
        head,
        r"\hline",
    ]
    return [*opening, *body, r"\hline", r"\end{tabular}"]


def escape_latex(text: str) -> str:
    return text.translate(ESCAPED)

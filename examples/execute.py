"""Execute the notebooks of this folder and write their outputs into them.

    python examples/execute.py                  # all of them
    python examples/execute.py compare.ipynb    # some

Needs `pip install 'strongreplay[docs]'`. A cell that fails, warns or prints an error stops the command.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with new outputs; what differs from machine to machine or from run to run is left out."""
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=place, coalesce_streams=True
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                raise RuntimeError(f"{path.name} wrote to stderr: {output.text}")
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def main(names: list[str]) -> None:
    for path in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(execute(path), path)
        print(f"executed {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])

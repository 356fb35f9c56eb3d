"""Files of the repository that lie beside the tests: pages, examples, benchmarks, records."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def in_repository(name: str) -> Path:
    """A file or folder of the repository. Where it is missing, the test or module that asks is skipped."""
    path = ROOT / name
    if not path.exists():
        reason = f"needs {name} of the repository, and there is only a copy of tests/ here"
        pytest.skip(reason, allow_module_level=True)
    return path

"""Modules of the folder tools: they work on a checkout of the course, and no installed package has them."""

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

from servinglab.errors import CourseError
from servinglab.root import find_root


def tool(name: str) -> Any:
    """The module tools/NAME.py, such as "sweep" or "site/build_site". Raises CourseError where there is none."""
    roots = [Path(__file__).resolve().parents[2]]
    with contextlib.suppress(CourseError):
        roots.append(find_root())
    for path in (root / "tools" / f"{name}.py" for root in roots):
        if path.is_file():
            if str(path.parent) not in sys.path:
                sys.path.insert(0, str(path.parent))
            return importlib.import_module(path.stem)
    raise CourseError(f"There is no tools/{name}.py here; run this from the course's folder.")

"""How large the house is: lines and files of Python in each package under lib/, and in each of its rooms."""

from __future__ import annotations

from pathlib import Path

LIB = Path(__file__).resolve().parents[1] / "lib"


def main() -> None:
    files: dict[tuple[str, ...], list[int]] = {}
    for path in sorted(LIB.rglob("*.py")):
        package, *rooms, _ = path.relative_to(LIB).parts
        count = len(path.read_text(encoding="utf-8").splitlines())
        for place in ((), (package,), (package, rooms[0] if rooms else ".")):
            files.setdefault(place, []).append(count)
    for place, counts in sorted(files.items()):
        name = "  " * len(place) + (place[-1] if place else "lib")
        print(f"{name:<24}{sum(counts):>7,} lines{len(counts):>5} files")


if __name__ == "__main__":
    main()

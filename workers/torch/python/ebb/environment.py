"""`python -m ebb.environment`: what a Python has, and what an environment lacks. Reads a question as JSON on standard input, answers there
with JSON; imports no torch and changes nothing. Packages are installed by what asks (`src/environment.rs`)."""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import importlib.util
import json
import os
import re
import sys
import sysconfig
from typing import Any


def main() -> None:
    """Answers the one question."""
    question = json.load(sys.stdin)
    answer = base(question["lines"]) if question["ask"] == "base" else {"missing": missing(question["folder"])}
    json.dump(answer, sys.stdout)


def base(lines: list[str]) -> dict[str, Any]:
    """What the Python that an environment is built on has, and which lines it meets already."""
    installed = found_here()
    Requirement = parser()
    needed, conflict = [], None
    for line in lines:
        name = canonical(re.match(r"[A-Za-z0-9._-]+", line).group())
        meets = name in installed and meets_line(Requirement, line, installed[name])
        if name == "torch" and name in installed and not meets:
            conflict = f"the requirements say `{line}`, and `{sys.executable}` has torch {installed[name]}"
        if not meets:
            needed.append({"line": line, "name": name})
    return {
        "executable": sys.executable,
        "version": sys.version,
        "folders": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} | set(site_folders())),
        "installed": installed,
        "needed": needed,
        "conflict": conflict,
        "pip": importlib.util.find_spec("pip") is not None,
    }


def found_here() -> dict[str, str]:
    """The packages on this Python's path and their versions. Of several by one name the first counts, since that is what an import finds; the
    remains of one that was removed have no name."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        if distribution.name and distribution.version:
            found.setdefault(canonical(distribution.name), distribution.version)
    return found


def site_folders() -> list[str]:
    """Where else packages are found: those of a Debian's own Python lie elsewhere than where it would install some."""
    return [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages") and os.path.isdir(path)]


def meets_line(Requirement: Any, line: str, version: str) -> bool:
    """Whether a version is what a line asks for. Of one with an address that cannot be seen; a hash is of what would be installed."""
    line = line.split(" --hash=")[0]
    if "@" in line:
        return False
    if Requirement is None:
        return re.fullmatch(r"[A-Za-z0-9._-]+", line) is not None
    requirement = Requirement(line)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    return not requirement.extras and requirement.specifier.contains(version, prereleases=True)


def missing(folder: str) -> list[dict[str, str]]:
    """What packages in `folder` need and do not find on this Python's path."""
    Requirement = parser()
    if Requirement is None:
        return []
    found, lacks = found_here(), []
    for distribution in metadata.distributions(path=[folder]):
        for text in distribution.requires or []:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            name = canonical(requirement.name)
            if name not in found or not requirement.specifier.contains(found[name], prereleases=True):
                has = f"there is {found[name]}" if name in found else "there is none"
                lacks.append({"name": name, "what": f"{distribution.name} needs {text}, and {has}"})
    return lacks


def parser() -> Any:
    """The standard's own reader of requirements, from where pip brings it along, or none."""
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return importlib.import_module(name).Requirement
        except ImportError:
            continue
    return None


def canonical(name: str) -> str:
    """A package's name as all write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Knowledge flows one way: every #include "room/…" under src/ must be an arrow in tools/arrows.json,
and every room's CMake DEPS must stay within them too."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
ROOM = re.compile(r"eyrie_room\((\w+)(.*?)\)", re.DOTALL)


def room_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT / "src").parts[0]


def allowed(arrows: dict, room: str, target: str) -> bool:
    return room == target or "*" in arrows[room] or target in arrows[room]


def main() -> int:
    arrows = json.loads((ROOT / "tools" / "arrows.json").read_text())
    problems, checked = [], 0
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        room = room_of(path)
        if room not in arrows:
            problems.append(f"{path.relative_to(ROOT)}: room '{room}' is not in tools/arrows.json")
            continue
        for include in INCLUDE.findall(path.read_text()):
            target = include.split("/")[0]
            checked += 1
            if "/" not in include:
                problems.append(f'{path.relative_to(ROOT)}: "{include}" is not relative to src/')
            elif target not in arrows:
                problems.append(f'{path.relative_to(ROOT)}: "{include}" names no room')
            elif not allowed(arrows, room, target):
                problems.append(f"{path.relative_to(ROOT)}: {room} may not know {target} ({include})")
    for path in sorted((ROOT / "src").rglob("CMakeLists.txt")):
        for room, body in ROOM.findall(path.read_text()):
            deps = re.search(r"DEPS((?:\s+[a-z_]+)+)", body)
            for target in deps.group(1).split() if deps else []:
                if room in arrows and target in arrows and not allowed(arrows, room, target):
                    problems.append(f"{path.relative_to(ROOT)}: {room} links {target}, no such arrow")
    seen_cycle = [r for r in arrows if r != "apps" and r in reach(arrows, r)]
    problems += [f"tools/arrows.json: {room} reaches itself" for room in seen_cycle]
    print("\n".join(problems) if problems else f"{checked} includes follow the arrows")
    return 1 if problems or checked == 0 else 0


def reach(arrows: dict, start: str) -> set:
    found, todo = set(), list(arrows[start])
    while todo:
        room = todo.pop()
        if room not in found:
            found.add(room)
            todo += arrows.get(room, [])
    return found


if __name__ == "__main__":
    sys.exit(main())

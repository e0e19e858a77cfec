#!/usr/bin/env python3
"""Join the list of emoji (emojibase) with the picture files of each set.

    build_manifest.py [--render STYLE,STYLE,...]

Run in a folder whose `npm/` holds the unpacked packages (see README.md). Writes
`data/manifest.json` and, with --render, `data/render_jobs.json` for render.mjs.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

NPM, OUT = Path("npm"), Path("data")
EMOJIBASE = NPM / "emojibase-data-17.0.0"
BY_CODE = {"noto": "noto", "fluentflat": "fluent-emoji-flat"}
SKIN = {"1f3fb", "1f3fc", "1f3fd", "1f3fe", "1f3ff"}
ACCENTS = str.maketrans({"’": "", "'": "", "&": "and", "ñ": "n", "é": "e", "ã": "a", "ç": "c",
                         "ô": "o", "å": "a"})


def key_of(code: str) -> str:
    """A sequence of code points without the selectors of colour."""
    return "-".join(part for part in code.lower().split("-") if part != "fe0f")


def slug(text: str) -> str:
    """A name as the icon sets write it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower().translate(ACCENTS)).strip("-")


def read(path: Path):
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def package(name: str) -> Path:
    """The unpacked package of an icon set."""
    return next(path for path in sorted(NPM.iterdir())
                if re.match(rf"iconify-json-{name}-\d", path.name))


def resolve(icons: dict, name: str) -> str | None:
    """The icon that a name or an alias means."""
    for _ in range(6):
        if name in icons["icons"]:
            return name
        alias = icons.get("aliases", {}).get(name)
        if not alias:
            return None
        name = alias["parent"]
    return None


def svg(icons: dict, name: str) -> str:
    """An icon as a whole SVG file."""
    icon = icons["icons"][name]
    width, height = (icon.get(side, icons.get(side, 16)) for side in ("width", "height"))
    box = f"{icon.get('left', 0)} {icon.get('top', 0)} {width} {height}"
    return ('<svg xmlns="http://www.w3.org/2000/svg" '
            'xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'width="{width}" height="{height}" viewBox="{box}">{icon["body"]}</svg>')


def short_codes() -> dict[str, list[str]]:
    """Short codes of every emoji, from three vocabularies."""
    codes: dict[str, list[str]] = {}
    for name in ("github", "joypixels", "emojibase"):
        for code, words in read(EMOJIBASE / f"en/shortcodes/{name}.json").items():
            codes.setdefault(key_of(code), []).extend(
                words if isinstance(words, list) else [words])
    return codes


def match_by_name(icons: dict, emoji: dict, codes: dict, sets: dict) -> dict[str, str]:
    """Icons of a set that lists only names: label, short code, or the name in another set."""
    names = set(icons["icons"]) | set(icons.get("aliases", {}))
    found = {}
    for key, entry in emoji.items():
        candidates = [entry["label"], *(sets[name][key] for name in BY_CODE if key in sets[name]),
                      *(code.replace("_", " ") for code in codes.get(key, []))]
        for candidate in map(slug, candidates):
            icon = resolve(icons, candidate) if candidate in names else None
            if icon:
                found[key] = icon
                break
    claims = Counter(found.values())  # an icon must not be claimed through a loose synonym
    return {key: icon for key, icon in found.items()
            if claims[icon] == 1 or slug(emoji[key]["label"]) == slug(icon)}


def picture_sets(emoji: dict, codes: dict) -> tuple[dict, dict]:
    """File or icon of every emoji in every set, and the icon sets themselves."""
    sets, icons = {}, {}
    files = (NPM / "lobehub-fluent-emoji-3d-1.1.0/assets").iterdir()
    sets["fluent3d"] = {key_of(path.stem): path.name for path in files}
    for style, name in BY_CODE.items():
        icons[style] = read(package(name) / "icons.json")
        chars = read(package(name) / "chars.json")
        resolved = {key_of(code): resolve(icons[style], icon) for code, icon in chars.items()}
        sets[style] = {key: icon for key, icon in resolved.items() if icon}
    icons["fluentmodern"] = read(package("fluent-emoji") / "icons.json")
    sets["fluentmodern"] = {key: icon for key, icon in sets["fluentflat"].items()
                            if icon in icons["fluentmodern"]["icons"]}
    icons["notov1"] = read(package("noto-v1") / "icons.json")
    sets["notov1"] = match_by_name(icons["notov1"], emoji, codes, sets)
    return sets, icons


def wanted(entry: dict) -> bool:
    """No parts, no flags of countries, no tones of skin."""
    group = entry.get("group")
    if group is None or group == 2 or (group == 9 and entry["subgroup"] != 97):
        return False
    return not SKIN & set(key_of(entry["hexcode"]).split("-"))


def main() -> None:
    """Write the manifest, and the list of pictures to render where that is asked for."""
    groups = read(EMOJIBASE / "meta/groups.json")
    data, codes = read(EMOJIBASE / "en/data.json"), short_codes()
    sets, icons = picture_sets({key_of(entry["hexcode"]): entry for entry in data}, codes)
    concepts = []
    for entry in filter(wanted, data):
        key, label = key_of(entry["hexcode"]), entry["label"]
        person = bool(re.match(r"^(man|woman|men|women)\b", label))
        concepts.append(dict(
            hex=entry["hexcode"], key=key, emoji=entry["emoji"], label=label,
            tags=entry.get("tags", []), shortcodes=sorted(set(codes.get(key, []))),
            group=groups["groups"][str(entry["group"])],
            subgroup=groups["subgroups"][str(entry["subgroup"])],
            gender_variant=person and "200d" in key,
            files={style: files[key] for style, files in sets.items() if key in files}))
    OUT.mkdir(exist_ok=True)
    (OUT / "manifest.json").write_text(
        json.dumps(concepts, ensure_ascii=False, indent=0), encoding="utf-8")
    for style in sets:
        print(style, sum(style in concept["files"] for concept in concepts), "pictures")
    if "--render" in sys.argv:
        jobs = []
        for style in sys.argv[sys.argv.index("--render") + 1].split(","):
            folder = OUT / "png" / style
            folder.mkdir(parents=True, exist_ok=True)
            jobs += [dict(svg=svg(icons[style], concept["files"][style]),
                          out=f"{folder}/{concept['key']}.png")
                     for concept in concepts if style in concept["files"] and style in icons]
        (OUT / "render_jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
        print(len(jobs), "pictures to render")


if __name__ == "__main__":
    main()

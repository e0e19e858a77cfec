"""Adds the chips of chips.h to the shims of Mesa 25.0: amend.py FOLDER-OF-MESA.

The shims answer for a kernel's driver; they know fewer chips than the compilers do, and tell an
older version of AMD's kernel driver than Mesa 26 wants.
"""

import sys
from pathlib import Path

EDITS = {
    "src/amd/drm-shim/amdgpu_noop_drm_shim.c": [
        ("static void\namdgpu_select_device()",
         '#define LAB_AMD\n#include "lab_chips.h"\n\nstatic void\namdgpu_select_device()'),
        ("   if (!amdgpu_dev) {", "   if (!amdgpu_dev)\n      amdgpu_dev = lab_chip(gpu_id);\n"
         "   if (!amdgpu_dev) {"),
        ("version_minor = 49", "version_minor = 60"),  # Mesa 26 wants 54 or more
    ],
    "src/nouveau/drm-shim/nouveau_noop.c": [
        ("static struct nouveau_device_info device_info;",
         "static struct nouveau_device_info device_info;\n\n"
         '#define LAB_NVIDIA\n#include "lab_chips.h"'),
        ("      int idx = 0;\n      /* m2mf */",
         "      LAB_CLASSES(sclass, device_info.chip_id);\n      int idx = 0;\n      /* m2mf */"),
        ("gp->value = 0x01000101;", "gp->value = lab_units(device_info.chip_id);"),
        ("         info->ram_user = 3ULL << 30;",
         "         info->ram_user = 12ULL << 30;\n"
         "         if (lab_chip(device_info.chip_id)) {\n"
         "            strcpy(info->chip, lab_chip(device_info.chip_id)->name);\n"
         "            strcpy(info->name, lab_chip(device_info.chip_id)->name);\n"
         "         }"),
    ],
}


def main() -> None:
    """Make the edits. Ends with a message where a file is not what they are for."""
    mesa = Path(sys.argv[1])
    chips = Path(__file__).with_name("chips.h").read_text(encoding="utf-8")
    for name, edits in EDITS.items():
        path = mesa / name
        text = path.read_text(encoding="utf-8")
        for old, new in edits:
            if new in text:
                continue
            if text.count(old) != 1:
                sys.exit(f"{name}: {old!r} is there {text.count(old)} times; not Mesa 25.0")
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        path.with_name("lab_chips.h").write_text(chips, encoding="utf-8")


if __name__ == "__main__":
    main()

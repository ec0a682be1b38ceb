"""What a target that nobody knows was likely meant to be: the package name most like it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from tunehub.target.gpu_architectures import ARCHITECTURES

_OLD_FORM = re.compile(r"llvm\b.*-mcpu=([\w.-]+).*")
_LEAST = 0.6


def meant(text: str, cpus: Iterable[str]) -> str:
    """The beginning of a remedy, such as "did you mean 'llvm-znver4'? "; empty where no name is like ``text``.
    ``cpus``: LLVM's names."""
    old = _OLD_FORM.fullmatch(text)
    wanted = old[1] if old else text.lower().removeprefix("llvm-").removeprefix("cuda-").replace("_", "-")
    kinds = {**dict.fromkeys(ARCHITECTURES, "cuda"), **dict.fromkeys(cpus, "llvm")}
    stated = next((kind for kind in ("llvm", "cuda") if text.startswith(f"{kind}-")), None)
    names = [name for name, kind in kinds.items() if stated in (None, kind)]
    near = get_close_matches(wanted, names, 1, _LEAST)
    if near:
        return f"did you mean '{kinds[near[0]]}-{near[0]}'? "
    return "did you mean 'cuda'? " if wanted in ("gpu", "nvidia") else ""

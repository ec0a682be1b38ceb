"""A process that does what a document says, in the folder where it starts. Its argument is JSON: `document`, `extras`,
`prelude` (Python before the first step), `groups` of steps (language and text): each begins with the files as they
were."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def call(words: list[str], environment: dict[str, str]) -> None:
    """Run `tunehub` as its program does. Raises SystemExit, unless it ends with 0."""
    from tunehub.cli import main

    before = dict(os.environ)
    os.environ.update(environment)
    try:
        main(words)
    except SystemExit as stop:
        if stop.code:
            raise
    finally:
        os.environ.clear()
        os.environ.update(before)


def do(language: str, text: str, names: dict[str, Any]) -> None:
    """One step; Python shares `names` with all other of the document."""
    if language == "python":
        exec(compile(text, "document", "exec"), names)
        return
    words = shlex.split(text)
    settings = [word for word in words if "=" in word and word.partition("=")[0].isupper()]
    environment = dict(word.split("=", 1) for word in settings if words.index(word) < len(settings))
    words = words[len(environment) :]
    if words[0] == "tunehub":
        call(words[1:], environment)
    else:
        subprocess.run(["sh", "-ec", text], check=True, env={**os.environ, "PATH": f".:{os.environ['PATH']}"})


def run(given: dict[str, Any]) -> None:
    """All of a document."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(given["prelude"], "prelude", "exec"), names)
    start = Path.cwd()
    for number, group in enumerate(given["groups"]):
        if len(given["groups"]) > 1:
            folder = start.with_name(f"{start.name}{number}")
            shutil.copytree(start, folder)
            os.chdir(folder)
        for language, text in group:
            sys.stderr.write(f"\n>>> {text}\n")
            do(language, text, names)


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    sys.path[:0] = task["path"]
    from tests.documents.only_extras import install

    install(task["extras"])
    run(task)

"""Command blocks of documents: what they are, and which are run, where."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```|(?<=\n\n)((?: {4,}[^\n]+\n)+)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s+# .*$")
PROGRAMS = ("tunehub", "python", "pip", "cp", "g++", "./run")
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\S*/)?(?:{'|'.join(map(re.escape, PROGRAMS))}|python3|nox|dask|git)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One thing that a reader types: the text of a `python` block, or a line of a shell with its continuations."""

    document: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}: {self.text.strip().splitlines()[0][:100]}"


def steps(document: str) -> Iterator[Step]:
    """What a document has a reader do, in order."""
    for language, fenced, indented in _BLOCK.findall((ROOT / document).read_text(encoding="utf-8")):
        if language == "python":
            yield Step(document=document, language=language, text=fenced)
        elif language in ("", "sh"):
            for line in (indented or fenced).replace("\\\n", " ").splitlines():
                text = _COMMENT.sub("", line.strip()).strip()
                for part in re.split(r" && ", text):
                    if _COMMAND.match(part):
                        yield Step(document=document, language="sh", text=part)


def tunehub_words(step: Step) -> list[str] | None:
    """The words after `tunehub`, None for other steps."""
    if step.language != "sh":
        return None
    words = [word for word in shlex.split(step.text) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    return words[1:] if words and words[0].rpartition("/")[2] == "tunehub" else None


def named_extras(document: str) -> frozenset[str]:
    """The extras that a document has its readers install."""
    text = (ROOT / document).read_text(encoding="utf-8")
    groups = re.findall(r"(?:tunehub|\.)\[([\w,-]+)\]", text)
    words = re.findall(r"extras? ((?:`[\w-]+`(?:, | and | or )?)+)", text)
    return frozenset(
        [name for group in groups for name in group.split(",")]
        + [name for group in words for name in re.findall(r"`([\w-]+)`", group)]
    )

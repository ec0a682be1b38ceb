"""Texts from registries as people see them. They are hostile: whoever publishes chose them."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text without what does not print: control characters, ends of lines, and what turns the direction of
    writing. A terminal would obey some of these, and the log of a CI a line that begins with a command."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def plain_lines(text: str) -> str:
    """As `plain`, but lines stay lines."""
    return "\n".join(map(plain, text.split("\n")))

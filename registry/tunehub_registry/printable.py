"""Texts as people and logs see them. What comes from registries, packages, servers and files is hostile: whoever
published it chose it."""

from __future__ import annotations

import re

# What a CI obeys in its log: `::` at the beginning of a line (GitHub; a terminal's lines may break at any space), and
# these anywhere in it (GitHub's older ones, Azure Pipelines, TeamCity).
_COMMAND = re.compile(r"(?<!\S):(?=:)|#(?=#(?:\[|vso\[|teamcity\[))")
# A login in a URL (what follows the colon is no port), and parameters of a query that sign it or are a password.
_LOGIN = re.compile(r"(?<=://)(?:[^\s/?#@:]+@|[^\s/@:]*:(?!\d*(?:[/?#\s]|$))[^\s@]*@)")
_SECRET = re.compile(r"([?&][\w.-]*(?:sig|token|key|secret|passw|pwd|cred|auth)[\w.-]*=)[^&\s'\"<>)]+", re.IGNORECASE)


def plain(text: str) -> str:
    """The text on one line without what does not print (control characters, ends of lines, what turns the direction of
    writing: a terminal would obey some of these), without commands to a CI, and without logins and signatures of URLs.
    """
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "\ufffd" for char in text)
    if ":" not in text and "#" not in text and "=" not in text:
        return text
    return _SECRET.sub(r"\1***", _LOGIN.sub("***@", _COMMAND.sub(r"\g<0> ", text)))


class PlainMessage(Exception):
    """An exception or a warning whose message is `plain`: it is shown wherever it ends, in a traceback, too."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(plain(arg) if isinstance(arg, str) else arg for arg in args))

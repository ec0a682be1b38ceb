"""Pages by Jinja2: every value is escaped, an unknown one is an error, and links lead to the site's own pages alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup

from tunehub.site.overview import batch_of, column_type, heat
from tunehub_registry import __version__

_FOLDER = Path(__file__).parent
_SCRIPT = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


class _CompiledTemplates(jinja2.BytecodeCache):
    """The templates that this process has compiled, for the next catalogue."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if code := self._code.get(bucket.key):
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _CompiledTemplates()


class Pages:
    """Writes the pages of one catalogue into a folder."""

    def __init__(self, folder: Path, common: Mapping[str, object]) -> None:
        """`common` is what every template gets."""
        self._folder = folder
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
            bytecode_cache=_COMPILED,
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._environment.filters |= {
            "ms": milliseconds,
            "times": times,
            "percent": percent,
            "heat": heat,
            "batch_of": batch_of,
            "column_type": column_type,
            "drawn": Markup,
        }
        self._environment.globals |= {"version": __version__, **common}

    def write(self, template: str, path: str, **values: object) -> None:
        """Write one page. Links in it begin with `root`, which leads from the page to the site's first folder."""
        root = "../" * path.count("/")
        text = self._environment.get_template(template).render(root=root, here=path, **values)
        self.write_text(path, text)

    def write_script(self, path: str, name: str, value: object) -> None:
        """Write data as JavaScript that assigns it to `name`: pages from a file system cannot fetch JSON."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self.write_text(path, f"{name}={text.translate(_SCRIPT)};\n")

    def write_text(self, path: str, text: str) -> None:
        """Write a file."""
        place = self._folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="\n")

    def copy_static(self) -> None:
        """Copy styles and scripts."""
        for path in sorted((_FOLDER / "static").iterdir()):
            self.write_text(f"static/{path.name}", path.read_text(encoding="utf-8"))


def milliseconds(seconds: float | None) -> str:
    """A time in ms, in four digits; empty for none."""
    return "" if seconds is None else f"{1e3 * seconds:.4g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def times(gain: float | None) -> str:
    """How many times as fast; empty for none."""
    return "" if gain is None else f"{gain:.3g}×" if gain < 1000 else f"{gain:,.0f}×"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.2g} %"

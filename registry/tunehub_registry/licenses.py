"""Licences of packages, as SPDX expressions (https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/).

Whoever writes a package gives an expression that the installed list of SPDX knows. Readers take any text of an
expression's characters: the list grows, and an older reader must not refuse a package for a licence that is new to it.
"""

from __future__ import annotations

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from tunehub_registry.exceptions import LicenseError

DEFAULT_LICENSE = "CC0-1.0"
MAX_EXPRESSION = 256  # characters


def canonical_license(text: str) -> str:
    """An SPDX expression as the specification writes it: `apache-2.0 or mit` is `Apache-2.0 OR MIT`.

    Raises LicenseError for what is not one, or is longer than 256 characters.
    """
    if len(text) > MAX_EXPRESSION:
        raise LicenseError(text, f"has more than {MAX_EXPRESSION} characters")
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression as error:
        raise LicenseError(text, str(error)) from None


def license_of_both(first: str | None, second: str | None) -> str | None:
    """The licence of a package that holds what two others hold: both apply. None, not stated, if either is.

    Raises LicenseError when the result is too long.
    """
    if first is None or second is None:
        return None
    if first == second:
        return first
    return canonical_license(" AND ".join(dict.fromkeys([*_conjuncts(first), *_conjuncts(second)])))


def _conjuncts(expression: str) -> list[str]:
    nested = " OR " in expression or "(" in expression
    return [f"({expression})"] if nested else expression.split(" AND ")

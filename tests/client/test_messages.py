"""What errors and warnings say is plain wherever it is shown: in a traceback of somebody else's program, too."""

from __future__ import annotations

import traceback
import warnings

import pytest

from tunehub.exceptions import HubError, HubWarning, RegistryUnreadableError, SettingError, TunehubError, UsageError
from tunehub.policy import Policy
from tunehub_registry.exceptions import FieldError, FormatError, NewerFormatWarning, PackageError, RegistryError
from tunehub_registry.stores.address import UnsupportedAddressError, parse_address

pytestmark = pytest.mark.fast

HOSTILE = "\x1b]0;x\x07\n::error::x\r\u202e https://user:typed@host/x?X-Amz-Signature=signed"
ERRORS = [
    TunehubError(HOSTILE), HubError(HOSTILE, remedy=HOSTILE), UsageError(HOSTILE, HOSTILE, place=HOSTILE, remedy="r"),
    SettingError(HOSTILE, HOSTILE, place="p", remedy="r"), RegistryUnreadableError(HOSTILE, HOSTILE, remedy=HOSTILE),
    HubWarning(HOSTILE), NewerFormatWarning(HOSTILE), RegistryError(HOSTILE), FieldError(HOSTILE, HOSTILE),
    FormatError(HOSTILE, path=HOSTILE, source=HOSTILE), PackageError(HOSTILE, source=HOSTILE, member=HOSTILE),
    UnsupportedAddressError(HOSTILE, address=HOSTILE),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_the_message_of_an_error_is_one_plain_line(error: Exception) -> None:
    text = "".join(traceback.format_exception_only(type(error), error)).removesuffix("\n")
    assert text.isprintable() and "::error::x" in text
    assert "typed" not in text and "signed@" not in text and "=signed" not in text


def test_what_a_hub_warns_of_is_one_plain_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Policy(strict=False).warn(HOSTILE)
    text = str(caught[0].message)
    assert text.isprintable() and "typed" not in text


@pytest.mark.parametrize(
    "address", ["ftp://user:typed@host/x", "https://user:typed@[host", "s3://user:typed@b/x?region=r"]
)
def test_a_password_in_an_address_that_is_none_is_not_repeated(address: str) -> None:
    with pytest.raises(UnsupportedAddressError) as error:
        parse_address(address)
    assert "typed" not in str(error.value)

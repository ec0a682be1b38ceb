"""What is said of errors of TVM's and of the compilers behind it."""

from __future__ import annotations

import pytest

from tunehub.exceptions import last_line, typed_last_line

pytestmark = pytest.mark.fast

NVRTC = """NVRTC compilation failed:
tvm_kernels.cu(31): warning #177-D: variable "x" was declared but never referenced

tvm_kernels.cu(125): error: identifier "cold" is undefined

1 error detected in the compilation of "tvm_kernels.cu".
\0\0"""
PTXAS = "NVRTC compilation failed:\nptxas error   : Entry function 'main_kernel' uses too much shared data\n\0"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback:\n  1: tvm::Build()\nInternalError: no\n", "InternalError: no"),
        (NVRTC, 'tvm_kernels.cu(125): error: identifier "cold" is undefined'),
        (PTXAS, "ptxas error   : Entry function 'main_kernel' uses too much shared data"),
        ("NVRTC compilation failed: 7\n\0", "NVRTC compilation failed: 7"),
        ("a\0b", "ab"),
        ("\0\n", ""),
    ],
)
def test_the_reason_is_one_line(text: str, line: str) -> None:
    assert last_line(text) == line


def test_an_error_without_text_is_named_by_its_type() -> None:
    assert last_line(ValueError("\0")) == "ValueError"
    assert typed_last_line(ValueError("no")) == "ValueError: no"

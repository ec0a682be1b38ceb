"""A Relax module in a `.json` file, as `tvm.ir.save_json` writes it."""

from __future__ import annotations

import os
from pathlib import Path

from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, WorkerProcess
from tunehub.exceptions import WorkloadTextError
from tunehub.graph.module_text import ModuleReader, check_module, module_of
from tunehub_builder.networks.exceptions import ModelFileError
from tunehub_builder.networks.network import ImportedModel
from tunehub_builder.networks.other_file import OtherFile

_REMEDY = "Write it again with tvm.ir.save_json of the installed TVM, without packed or external functions"
_LIMIT_S = 600.0
_MAX_BYTES = 4 << 30  # of UTF-8; the text itself is checked, too


class RelaxFile(OtherFile):
    """A file of `tvm.ir.save_json`."""

    to_onnx = "Export the model to ONNX"

    def imported(self) -> ImportedModel:
        """See `UserModel.imported`."""
        from tunehub_builder.networks.fixing import with_fixed

        try:
            if self.path.stat().st_size > _MAX_BYTES:
                raise ModelFileError(str(self.path), f"has more than {_MAX_BYTES} bytes", _REMEDY)
            text = self.path.read_text(encoding="utf-8")
            check_module(text)
            _try(self.path)
            module = module_of(text)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or f"not readable as text ({error})"
            raise ModelFileError(str(self.path), reason, "Give a file that tvm.ir.save_json wrote") from error
        except WorkloadTextError as error:
            raise ModelFileError(str(self.path), error.reason, _REMEDY) from error
        return ImportedModel(module=with_fixed(module, self.shapes, self.sizes, str(self.path)))


def _try(path: Path) -> None:
    """Read the file in a process of its own first, which a malformed one may crash. Raises ModelFileError."""
    worker = WorkerProcess(ModuleReader, log=os.devnull, without=SLOW_OPTIONAL_MODULES)
    try:
        kind, value = worker.ask(("reading", str(path.resolve())), _LIMIT_S)
    finally:
        worker.stop(at_once=True)
    if kind != "ok":
        raise ModelFileError(str(path), str(value).removeprefix("WorkloadTextError: "), _REMEDY)

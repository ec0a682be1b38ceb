"""A program of torch.export in a `.pt2` file."""

from __future__ import annotations

import importlib
import io
import warnings
from typing import TYPE_CHECKING, Any

from tunehub.exceptions import last_line, typed_last_line
from tunehub.graph.quantised.torch_operators import torch_convert_map
from tunehub_builder.networks.exceptions import ModelFileError
from tunehub_builder.networks.exported_archive import checked_archive
from tunehub_builder.networks.network import ImportedModel
from tunehub_builder.networks.other_file import OtherFile
from tunehub_builder.networks.program_operators import operator_convert_map
from tunehub_builder.networks.program_products import product_convert_map
from tunehub_builder.networks.program_resizing import resizing_convert_map
from tunehub_builder.networks.program_types import decomposed
from tunehub_builder.networks.torch_decoders import decoder_convert_map

if TYPE_CHECKING:
    from tunehub.graph.types import TorchNode
    from tunehub.tir.types import IRModule

_NAMED = 3  # nodes that an error names
_ALIGNMENT = 64  # bytes, of the tensors that TVM takes from DLPack
_QUANTISED_OPERATORS = "torch.ao.quantization.fx._decomposed"  # importing it registers them
_REMEDY = "Write the model with other operators, or export it to ONNX"


class ExportedProgramFile(OtherFile):
    """A file of `torch.export.save`."""

    to_onnx = "Export it: torch.onnx.export(program, …)"

    def imported(self) -> ImportedModel:
        """See `UserModel.imported`. Raises ModuleNotFoundError without PyTorch."""
        from tunehub_builder.networks.fixing import with_fixed

        program = self.program()
        module = with_fixed(_to_relax(program, str(self.path)), self.shapes, self.sizes, str(self.path))
        return ImportedModel(module=module, outputs=_output_names(program))

    def program(self) -> Any:
        """The program (a `torch.export.ExportedProgram`), with nothing unpickled but tensors. Raises ModelFileError,
        and ModuleNotFoundError without PyTorch."""
        import torch

        checked = checked_archive(self.path)
        try:
            if checked.sample_inputs:
                # torch.export.load tries this, too, and then unpickles anything.
                torch.load(io.BytesIO(checked.sample_inputs), weights_only=True)
        except Exception as error:  # pickle's errors, and what its opcodes raise
            reason = f"its sample inputs are not plain tensors ({last_line(error, limit=120)})"
            raise ModelFileError(str(self.path), reason, "Save the program with example inputs of tensors") from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if checked.is_quantised:
                    importlib.import_module(_QUANTISED_OPERATORS)
                return torch.export.load(io.BytesIO(checked.data))
        except Exception as error:  # PyTorch raises whatever it runs into
            reason = f"PyTorch {torch.__version__} cannot load it ({typed_last_line(error)})"
            raise ModelFileError(str(self.path), reason, "Use the PyTorch that saved it, or save it again") from error


def _to_relax(program: Any, source: str) -> IRModule:
    import tvm
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = {
                **torch_convert_map(), **decoder_convert_map(), **operator_convert_map(), **product_convert_map(),
                **resizing_convert_map(),
            }  # fmt: skip
            program = _aligned(decomposed(program))
            return from_exported_program(program, custom_convert_map=known, run_ep_decomposition=False)
    except Exception as error:  # converters raise whatever they run into
        reason = f"TVM {tvm.__version__} cannot import {_place(error)} ({typed_last_line(error).rstrip('.')})"
        raise ModelFileError(source, reason, _REMEDY) from error


def _aligned(program: Any) -> Any:
    """The program with weights that TVM takes as they lie: others it reads by NumPy, which has no bfloat16."""
    import torch

    for kept in (program.state_dict, program.constants):
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.data_ptr() % _ALIGNMENT:
                kept[name] = value.detach().clone()
    return program


def _place(error: Exception) -> str:
    """Where the importer failed, by the variables of its functions: a node, or the nodes of operators that it lacks."""
    trace, found = error.__traceback__, "it"
    while trace is not None:
        values = trace.tb_frame.f_locals
        node: TorchNode = values.get("node")
        graph = getattr(values.get("exported_program"), "graph", None)
        if hasattr(node, "op") and hasattr(node, "target"):
            found = f"the operator {node.target} (node {node.name})"
        elif graph is not None:
            lacking = [each for each in graph.nodes if f"'{getattr(each.target, '__name__', '')}'" in str(error)]
            found = ", ".join(f"the operator {each.target} (node {each.name})" for each in lacking[:_NAMED]) or found
        trace = trace.tb_next
    return found


def _output_names(program: Any) -> tuple[str, ...]:
    return tuple(str(name) for name in program.graph_signature.user_outputs)

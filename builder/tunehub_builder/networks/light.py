"""The networks in the onnx package's backend tests (``onnx/backend/test/data/light``), with usable weights.

The files are the ONNX model zoo's networks with each large weight replaced by a ConstantOfShape node of one value, so
that all channels compute the same thing. Here all weights are random, scaled so that activations keep unit scale.
tvm and onnx are imported only when a model is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub_builder.networks.exceptions import OnnxFileError

if TYPE_CHECKING:
    import onnx
    import tvm


@dataclass(frozen=True, kw_only=True)
class LightNetwork:
    """The network in ``light_<stem>.onnx`` with weights made from `seed`."""

    stem: str
    seed: int

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`. Raises OnnxFileError when the installed onnx does not have the file."""
        import onnx.backend.test

        from tunehub_builder.networks import onnx_model
        from tunehub_builder.networks.light_weights import seed_weights

        path = Path(onnx.backend.test.__file__).parent / "data" / "light" / f"light_{self.stem}.onnx"
        if not path.is_file():
            reason = f"not among the test data of the installed onnx {onnx.__version__}"
            raise OnnxFileError(str(path), reason, "Install a version of onnx that has it, for example 1.23")
        model = onnx_model.load(path)
        onnx_model.drop_initializers_from_inputs(model)
        seed_weights(model.graph, self.seed)
        onnx_model.simplify(model)
        onnx_model.sanitise_interface(model)
        return model

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        from tunehub_builder.networks.onnx_import import to_relax

        return to_relax(self.onnx_model(), f"light_{self.stem}.onnx")

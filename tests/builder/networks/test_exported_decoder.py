"""A decoder with keys and values of the past as torch.export writes it of a transformers model; needs PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunehub_builder.networks import open_model_file

tvm = pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HEADS, SHARED, DEPTH, WORDS = 6, 2, 16, 20


def test_a_decoder_with_a_mask_and_an_empty_first_cache_computes_what_pytorch_does(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import tvm
    from tests.cpu_features import host

    import tunehub

    class Decoder(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(WORDS, 32)
            self.query = torch.nn.Linear(32, HEADS * DEPTH, bias=False)
            self.rest = torch.nn.Linear(32, 2 * SHARED * DEPTH, bias=False)
            self.out = torch.nn.Linear(HEADS * DEPTH, WORDS, bias=False)

        def forward(self, ids: Any, mask: Any, keys: Any, values: Any) -> Any:
            x, begun = self.words(ids), torch.tensor([])
            count = x.shape[1]
            query = self.query(x).view(2, count, HEADS, DEPTH).transpose(1, 2)
            both = self.rest(x).view(2, count, 2 * SHARED, DEPTH).transpose(1, 2)
            keys = torch.cat([torch.cat([begun, keys], dim=-2), both[:, :SHARED]], dim=-2)
            values = torch.cat([torch.cat([begun, values], dim=-2), both[:, SHARED:]], dim=-2)
            seen = keys.shape[2]
            places = torch.arange(count)[:, None] + (seen - count)
            allowed = (torch.arange(seen) <= places)[None, None] & mask[:, None, None, :seen].bool()
            wide = [
                each[:, :, None].expand(2, SHARED, HEADS // SHARED, seen, DEPTH).reshape(2, HEADS, seen, DEPTH)
                for each in (keys, values)
            ]
            mixed = torch.nn.functional.scaled_dot_product_attention(query, *wide, attn_mask=allowed)
            return self.out(mixed.transpose(1, 2).reshape(2, count, HEADS * DEPTH)), keys, values

    mask = torch.ones(2, 64, dtype=torch.int64)
    mask[1, :2] = 0
    model, count, past = Decoder().eval(), torch.export.Dim("count", min=2, max=32), torch.export.Dim("past", max=32)
    given = (torch.randint(0, WORDS, (2, 3)), mask, *(torch.randn(2, SHARED, 5, DEPTH) for _ in range(2)))
    program = torch.export.export(model, given, dynamic_shapes=({1: count}, None, {2: past}, {2: past}), strict=False)
    torch.export.save(program, tmp_path / "decoder.pt2")
    module = open_model_file(tmp_path / "decoder.pt2").imported().module
    with tunehub.context(host(2)):
        machine = tvm.relax.VirtualMachine(tvm.compile(module, host(2)), tvm.cpu())
    longer = (torch.randint(0, WORDS, (2, 21)), mask, *(torch.randn(2, SHARED, 19, DEPTH) for _ in range(2)))
    for inputs in (given, longer):
        found = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs))
        for ours, theirs in zip(found, model(*inputs), strict=True):
            assert np.allclose(ours.numpy(), theirs.detach().numpy(), atol=1e-5)

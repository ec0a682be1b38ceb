from __future__ import annotations

import io
import json

import msgspec
import pytest

from tunehub_registry.evidence import (
    BadLine,
    NetworkEvidence,
    RecordEvidence,
    encode_evidence,
    parse_evidence,
    read_evidence,
)
from tunehub_registry.exceptions import FormatError

pytestmark = pytest.mark.fast

RECORD = RecordEvidence(
    exact="0" * 32, default_s=0.2, tuned_s=0.1, speedup=2.0, repeats=10, spread=0.01, output_max_rel_diff=1e-6,
    threads=2, admitted=False, reason="slower",
)  # fmt: skip
NETWORK = NetworkEvidence(
    network="resnet18", default_s=3.0, tuned_s=0.02, onnxruntime_s=0.019, repeats=5, threads=2, output_max_rel_diff=0.0
)


def test_both_kinds_share_a_file() -> None:
    data = encode_evidence(RECORD) + b"{}\n" + encode_evidence(NETWORK)
    first, bad, last = read_evidence(io.BytesIO(data), "evidence.jsonl")
    assert (first, last) == (RECORD, NETWORK)
    assert isinstance(bad, BadLine)
    assert (bad.line, "type" in bad.reason) == (2, True)
    assert json.loads(encode_evidence(RECORD))["type"] == "record"
    assert json.loads(encode_evidence(NETWORK))["type"] == "network"


def test_outputs_need_not_be_compared_of_a_rejected_record() -> None:
    rejected = msgspec.structs.replace(RECORD, output_max_rel_diff=None)
    assert parse_evidence(encode_evidence(rejected), "e:1") == rejected
    with pytest.raises(FormatError, match="is admitted"):
        parse_evidence(encode_evidence(rejected).replace(b"false", b"true"), "e:1")


def test_whose_record_it_is_and_against_what_is_optional() -> None:
    data = encode_evidence(RECORD)
    assert not {"tuner", "baseline"} & json.loads(data).keys()
    stated = msgspec.structs.replace(RECORD, tuner="autotvm", baseline="the template's default configuration")
    assert parse_evidence(encode_evidence(stated), "e:1") == stated


def test_a_templates_own_knobs_may_have_a_time() -> None:
    stated = msgspec.structs.replace(RECORD, tuner="template", template="last_axis", untuned_s=0.12)
    assert parse_evidence(encode_evidence(stated), "e:1") == stated
    assert not {"template", "untuned_s"} & json.loads(encode_evidence(RECORD)).keys()
    for wrong in ("0", "1e999", '"x"'):
        with pytest.raises(FormatError):
            parse_evidence(encode_evidence(stated).replace(b"0.12", wrong.encode()), "e:1")


def test_on_a_gpu_pytorch_and_the_driver_are_stated() -> None:
    assert not {"torch_s", "driver", "device"} & json.loads(encode_evidence(NETWORK)).keys()
    stated = msgspec.structs.replace(
        NETWORK, onnxruntime_s=None, tuned_graphs_s=0.015, torch_s=0.03, torch_graphs_s=0.016, device="NVIDIA H200",
        driver="580.1", max_clocks_mhz=(1980, 3201), conditions="PyTorch 2.11",
    )  # fmt: skip
    assert parse_evidence(encode_evidence(stated), "e:1") == stated
    for wrong in ("0", "1e999", "null"):
        with pytest.raises(FormatError):
            parse_evidence(encode_evidence(stated).replace(b"0.016", wrong.encode()), "e:1")


def test_tvms_default_may_be_missing_where_something_else_was_measured() -> None:
    stated = msgspec.structs.replace(NETWORK, default_s=None, onnxruntime_s=None, llama_cpp_s=0.05)
    assert parse_evidence(encode_evidence(stated), "e:1") == stated
    with pytest.raises(FormatError, match="nothing else was measured beside"):
        parse_evidence(encode_evidence(stated).replace(b'"llama_cpp_s":0.05,', b""), "e:1")


@pytest.mark.parametrize(("field", "value"), [("tuned_s", 0), ("spread", -1), ("threads", 0), ("type", "other")])
def test_wrong_values_carry_the_path(field: str, value: object) -> None:
    document = {**json.loads(encode_evidence(RECORD)), field: value}
    with pytest.raises(FormatError) as caught:
        parse_evidence(json.dumps(document).encode(), "e:1")
    assert caught.value.path == f"$.{field}"

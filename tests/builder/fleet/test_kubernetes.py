"""The manifests in docs/tune.md against what dask-kubernetes' custom resources take."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

pytestmark = pytest.mark.fast

SCHEMAS = json.loads(Path(__file__).with_name("dask_kubernetes.schema.json").read_text())["kinds"]
PAGE = Path(__file__).parents[3] / "docs/tune.md"


def manifests() -> list[dict[str, Any]]:
    section = PAGE.read_text().split("### On Kubernetes")[1].split("### ")[0]
    return list(yaml.safe_load_all(section.split("```yaml\n")[1].split("```")[0]))


def check(manifest: dict[str, Any]) -> None:
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])


def test_the_manifests_in_the_docs_are_what_the_operator_takes() -> None:
    found = manifests()
    for manifest in found:
        check(manifest)
    cluster, group = found
    assert group["spec"]["cluster"] == cluster["metadata"]["name"]
    selector = cluster["spec"]["scheduler"]["service"]["selector"]
    assert selector["dask.org/cluster-name"] == cluster["metadata"]["name"]


def test_a_manifest_with_a_misspelt_field_is_refused() -> None:
    wrong = deepcopy(manifests()[1])
    container = wrong["spec"]["worker"]["spec"]["containers"][0]
    container["resource"] = container.pop("resources")
    with pytest.raises(jsonschema.ValidationError, match="resource"):
        check(wrong)

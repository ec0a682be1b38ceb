"""What a library was made of, as a software bill of materials: CycloneDX 1.6 in JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tunehub.deploy.interface import Interface
from tunehub.report.origin import FOLDER, Origin


def bill_of_materials(name: str, sha256: str, interface: Interface) -> dict[str, object]:
    """The bill of the library `name`. The same library gives the same bill: it has no date and no serial number."""
    components = list(_components(interface))
    refs = [each["bom-ref"] for each in components]
    library = {"type": "application", "bom-ref": name, "name": name, "hashes": _hashes(sha256)}
    origin = interface.origin or Origin()
    facts = {"target": interface.target, "lock-sha256": origin.lock_sha256, "rules-sha256": origin.rules_sha256}
    properties = [{"name": f"tunehub:{key}", "value": value} for key, value in facts.items() if value is not None]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**library, "properties": properties}},
        "components": components,
        "dependencies": [{"ref": name, "dependsOn": refs}],
    }


def _components(interface: Interface) -> Iterator[dict[str, object]]:
    """The programs, the packages of records, and the model."""
    for program, version in (("tunehub", interface.tunehub), ("apache-tvm", interface.tvm)):
        place = f"pkg:pypi/{program}@{version}"
        yield {"type": "library", "bom-ref": place, "name": program, "version": version, "purl": place}
    for package in (interface.origin or Origin()).packages:
        found: dict[str, object] = {
            "type": "data",
            "bom-ref": package.label,
            "name": package.name,
            "version": package.version,
        }
        if package.registry != FOLDER and "://" in package.registry:
            found["externalReferences"] = [{"type": "distribution", "url": package.registry}]
        yield {**found, "hashes": _hashes(package.sha256)}
    if interface.source is not None:
        model = {"type": "machine-learning-model", "bom-ref": interface.source, "name": interface.source}
        yield {**model, **({"hashes": _hashes(interface.source_sha256)} if interface.source_sha256 else {})}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]

"""What `tunehub check --again` wrote: evidence on a package's rows and networks, of which `tunehub pack --judged` makes
its next version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tunehub.registries.key_scheme import META_SCHEDULE, RECORD_TUNERS
from tunehub_builder.exceptions import BuilderError
from tunehub_registry.evidence import Evidence, NetworkEvidence, RecordEvidence, encode_evidence, read_evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Evidence on ``rows`` by tuner and key, and on ``networks`` by their names; of two on the same the later."""

    rows: dict[tuple[str, str], RecordEvidence] = field(default_factory=dict)
    networks: dict[str, NetworkEvidence] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rows or self.networks)

    def add(self, line: Evidence) -> None:
        """One line more."""
        if isinstance(line, NetworkEvidence):
            self.networks[line.network] = line
        else:
            self.rows[line.tuner or META_SCHEDULE, line.exact] = line

    @property
    def slower_networks(self) -> Mapping[str, NetworkEvidence]:
        """Those that are slower with the records than without."""
        return {name: line for name, line in self.networks.items() if line.is_slower}


def network_of(label: str) -> str:
    """The network that a line of evidence is about: without the suffix that names one of the tuners whose records
    clients with current TVM have. Lines of other sets keep theirs: `resnet-18 (graph)`."""
    name, _, rest = label.partition(" (")
    return name if rest.removesuffix(")") in RECORD_TUNERS else label


def read_judged(path: Path) -> Judged:
    """What was judged before; nothing where there is no file. Raises BuilderError where it cannot be read, or holds
    something else."""
    judged = Judged()
    try:
        with path.open("rb") as stream:
            lines = list(read_evidence(stream, str(path)))
    except FileNotFoundError:
        return judged
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror}; give a file that `tunehub check --again` wrote") from error
    for number, line in enumerate(lines, 1):
        if not isinstance(line, Evidence):
            raise BuilderError(f"{path}, line {number}: no evidence; delete the line and judge again")
        judged.add(line)
    return judged


def write_judged(path: Path, line: Evidence) -> None:
    """Append a line. Raises OSError."""
    with path.open("ab") as file:
        file.write(encode_evidence(line))

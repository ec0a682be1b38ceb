"""One workload of AutoTVM: the steps that find a configuration for it, in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import autotvm

from tunehub.records.log_lookup import LogCandidate, LogLookup
from tunehub.relay.legality import device_problem, tensor_core_problem
from tunehub.relay.transfer import transferred
from tunehub.report.ladder import StepRejected, walk

if TYPE_CHECKING:
    from tunehub.relay.types import Config, Workload
    from tunehub.target.types import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigRequest:
    """What a configuration is wanted for: a workload with its key, on a target, and where records come from."""

    logs: LogLookup
    target: Target
    workload: Workload
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedConfig:
    """A record that was handed to TVM: for this target, in place of a default.

    `key` is the workload's own; on the rung `transfer` the record is for another one, and `config` was fitted.
    """

    target: Target
    workload: Workload
    key: str
    candidate: LogCandidate
    config: Config


_Outcomes = Iterable[ServedConfig | StepRejected]


def find_config(request: ConfigRequest) -> tuple[ServedConfig | None, tuple[StepRejected, ...]]:
    """The configuration by the first step that has one, and what was rejected. Raises what a template raises."""
    return walk((_recorded, _transferred), request)


def _recorded(request: ConfigRequest) -> _Outcomes:
    """The record of this very workload; one of another device is held to the limits of this one."""
    candidate = request.logs.best("autotvm", request.key)
    if candidate is None:
        return
    config = autotvm.task.space.ConfigEntity.from_json_dict(candidate.record.config)
    config.cost = candidate.record.mean_s
    reason = _reason_against(request, candidate, config)
    if reason is None:
        yield _served(request, candidate, config)
    else:
        yield StepRejected(step="exact", reason=reason, package=candidate.package, record=candidate.record.name)


def _reason_against(request: ConfigRequest, candidate: LogCandidate, config: Config) -> str | None:
    problem = tensor_core_problem(request.target, request.workload, config)
    if problem is not None:
        return f"left out: {problem}"
    problem = device_problem(request.target, request.workload, config) if candidate.rung == "family" else None
    return problem and f"measured on another device: {problem}"


def _transferred(request: ConfigRequest) -> _Outcomes:
    """A record of other shapes, fitted; none where any implementation of the operator has a record."""
    found = transferred(request.logs, request.target, request.workload)
    if found is not None and tensor_core_problem(request.target, request.workload, found.config) is None:
        yield _served(request, found.candidate, found.config)


def _served(request: ConfigRequest, candidate: LogCandidate, config: Config) -> ServedConfig:
    return ServedConfig(
        target=request.target, workload=request.workload, key=request.key, candidate=candidate, config=config
    )

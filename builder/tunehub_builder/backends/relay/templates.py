"""A user's own AutoTVM template, named as ``module:function``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.exceptions import last_line
from tunehub_builder.backends.relay.autotvm_session import as_tuples
from tunehub_builder.exceptions import TuningError

if TYPE_CHECKING:
    from tunehub.relay.types import Task
    from tunehub.target.types import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class UserTemplate:
    """``task``: the name under which ``module`` registers it with ``@autotvm.template(task)``."""

    module: str
    task: str


def load_template(place: str) -> UserTemplate:
    """Import the template ``module:function``; modules in the current folder are found too.

    Raises TuningError: no such module or function, or it is no template.
    """
    module_name, _, function = place.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ImportError as error:
        remedy = "run tunehub in the folder of the module, or install it"
        raise TuningError(f"the template {place}: cannot import {module_name} ({error}); {remedy}") from error
    found = getattr(module, function, None)
    if found is None:
        raise TuningError(f"the template {place}: {module_name} has no {function}; give MODULE:FUNCTION")
    task = _task_name(found)
    if task is None:
        remedy = f'write @autotvm.template("{module_name}/{function}") above it (TVM >= 0.7 wants a name)'
        raise TuningError(f"the template {place}: {function} is not registered as a template; {remedy}")
    return UserTemplate(module=module_name, task=task)


def create_template_task(place: str, template: UserTemplate, arguments: Sequence[object], target: Target) -> Task:
    """AutoTVM's task for the template. Raises TuningError when the template does not take the arguments."""
    from tvm import autotvm

    try:
        return autotvm.task.create(template.task, as_tuples(arguments), target=target)
    except Exception as error:  # the template is the user's code
        listed = ", ".join(map(repr, arguments)) or "no arguments"
        reason = f"it failed with {listed} ({type(error).__name__}: {last_line(error)})"
        raise TuningError(f"the template {place}: {reason}; mend --template-args or the template") from error


def _task_name(function: Callable[..., object]) -> str | None:
    """AutoTVM keeps the function itself, and hands out a wrapper of it (``autotvm/task/task.py``)."""
    from tvm.autotvm.task.task import TASK_TABLE

    inner = getattr(function, "__wrapped__", function)
    for name, template in TASK_TABLE.items():
        if getattr(template, "fcustomized", None) is inner:
            return str(name)
    return None

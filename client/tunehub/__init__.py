"""tunehub: pre-tuned schedules for TVM, found and installed while a model is being compiled.

    with tunehub.context(target) as hub:
        executable = tvm.compile(mod, target)
    hub.report().print()

Importing this package imports neither TVM nor anything else that is heavy: names are loaded when they are used.
"""

from tunehub_registry import __version__

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from tunehub.api import compile, context, explain, install, installed_hubs, pipeline, resolve, uninstall
    from tunehub.compiler.hub import Hub, open_hub
    from tunehub.deploy.loading import Model, load
    from tunehub.exceptions import (
        HubError,
        HubWarning,
        LibraryError,
        LockFileError,
        MissesFileError,
        RequirementError,
        SettingError,
        TunehubError,
        UnknownTargetError,
        UnsupportedTVMError,
    )
    from tunehub.graph.quantised.torch_operators import torch_convert_map
    from tunehub.registries.resolution import Resolution
    from tunehub.report.model import WorkloadReport
    from tunehub.report.report import Report
    from tunehub.target.host import host_target

__all__ = [
    "Hub",
    "HubError",
    "HubWarning",
    "LibraryError",
    "LockFileError",
    "MissesFileError",
    "Model",
    "Report",
    "RequirementError",
    "Resolution",
    "SettingError",
    "TunehubError",
    "UnknownTargetError",
    "UnsupportedTVMError",
    "WorkloadReport",
    "__version__",
    "compile",
    "context",
    "explain",
    "host_target",
    "install",
    "installed_hubs",
    "load",
    "open_hub",
    "pipeline",
    "resolve",
    "torch_convert_map",
    "uninstall",
]

# Where the names are; those of errors and warnings are in `tunehub.exceptions`.
_MODULES = {
    "tunehub.api": ("compile", "context", "explain", "install", "installed_hubs", "pipeline", "resolve", "uninstall"),
    "tunehub.compiler.hub": ("Hub", "open_hub"),
    "tunehub.deploy.loading": ("Model", "load"),
    "tunehub.registries.resolution": ("Resolution",),
    "tunehub.graph.quantised.torch_operators": ("torch_convert_map",),
    "tunehub.report.model": ("WorkloadReport",),
    "tunehub.report.report": ("Report",),
    "tunehub.target.host": ("host_target",),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = next((place for place, names in _MODULES.items() if name in names), "tunehub.exceptions")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""`tunehub doctor`: is everything there that compiling with records needs?"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import click

from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import print_json, say
from tunehub.exceptions import HubError, TunehubError, UnsupportedTVMError, last_line
from tunehub.options import Options, read_options
from tunehub.records.stale_rows import known_stale
from tunehub.registries.configured import configured_registries
from tunehub.registries.embedded import EMBEDDED
from tunehub.registries.failures import plain_age
from tunehub.registries.ordered import Registries
from tunehub.registries.plain import PlainRegistry
from tunehub.registries.port import Registry
from tunehub.registries.requirement import Requirement
from tunehub.registries.resolution import nearest_text
from tunehub.registries.root_file import read_root
from tunehub.registries.signed import SignedRegistry
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.stores.port import Deadline
from tunehub_registry.target import TargetDescriptor

State = Literal["ok", "warning", "error"]
_MARKS = {"ok": ("ok", "green"), "warning": ("!!", "yellow"), "error": ("no", "red")}
_PROBE_TIMEOUT_S = 120
_MAX_NAMES = 500  # characters
_MOST_ROWS = 10  # that are named
_SIGN = "ask its operator for signatures: `tunehub init` makes a signed registry"
# What only TVM knows is asked in another process: its thread pool starts when it is asked for its size.
_PROBE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import tvm
from tunehub.target import host
gpu = host.gpu_descriptor()
cpu = host.host_descriptor(use_tvm=True)
describe = lambda item: None if item is None else {
    "name": item.name, "arch": item.arch, "features": list(item.features), "cores": item.num_cores,
    "aliases": list(item.aliases)}
from tunehub.cli.calibrate import gpu_profile_state, profile_state, rules_state
import warnings
warnings.simplefilter("ignore")
named = host.host_cpu()
print(json.dumps({"threads": int(tvm.get_global_func("runtime.NumThreads")()), "version": tvm.__version__,
                  "cpu": describe(cpu), "gpu": describe(gpu), "mattr": list(named.mattr) if named else [],
                  "profile": profile_state(), "gpu_profile": gpu_profile_state() if gpu else {},
                  "rules": rules_state()}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the doctor. `remedy` is None when nothing is to be done."""

    name: str
    state: State
    text: str
    remedy: str | None = None


@click.command()
@registry_option
@json_option
def doctor(registry: Sequence[str], as_json: bool) -> None:
    """Check Python, TVM, this machine, the cache and the registries. Exits with 1 when something broken matters."""
    findings = examine(read_options(registry=registry or None))
    broken = any(item.state == "error" for item in findings)
    if as_json:
        print_json({"ok": not broken, "findings": [asdict(item) for item in findings]})
    else:
        for item in findings:
            mark, colour = _MARKS[item.state]
            click.secho(mark, fg=colour, nl=False)
            say(f"  {item.name}: {item.text}")
            if item.remedy:
                say(f"      {item.remedy}")
    sys.exit(1 if broken else 0)


def examine(options: Options) -> list[Finding]:
    """All findings, in the order in which one would look."""
    findings = [Finding(name="python", state="ok", text=f"{platform.python_version()} ({sys.executable})")]
    findings.append(_examine_compiler())
    about_tvm, machines = _examine_tvm()
    findings += [*about_tvm, _examine_cache(options)]
    findings += [*_examine_registries(options, machines), *_examine_rows(options)]
    findings += [_examine_onnxruntime()]
    return findings


def _examine_tvm() -> tuple[list[Finding], list[dict[str, Any]]]:
    """What there is to say of TVM and of this machine; and its CPU and its GPU, as far as they are known."""
    from tunehub.target.tvm_generation import check_pair, find_tvm

    installed = find_tvm()
    try:
        generation = check_pair(installed)
    except UnsupportedTVMError as error:
        broken = Finding(name="tvm", state="error", text=error.reason, remedy=error.remedy)
        cpu = _cpu_without_tvm()
        return [broken, *_describe_cpu(cpu, "without TVM")], [cpu]
    version = installed.version if installed else ""
    ffi = installed.ffi if installed else None
    text = f"{version} (Relay)" if generation == "relay" else f"{version} with apache-tvm-ffi {ffi}"
    try:
        probe = run_probe()
    except OSError as error:
        remedy = "run `python -c 'import tvm'` and mend what it says"
        return [Finding(name="tvm", state="error", text=f"{text}: importing it fails: {error}", remedy=remedy)], []
    found = [
        Finding(name="tvm", state="ok", text=text),
        *_describe_cpu(probe["cpu"], "by LLVM", probe["mattr"]),
        _describe_profile(probe["profile"], probe["rules"]),
        *_describe_precision(probe["rules"]),
        _describe_gpu(probe["gpu"]),
        *_describe_gpu_profile(probe.get("gpu_profile", {})),
        *([] if probe["gpu"] is None else [_describe_headers()]),
        _describe_threads(probe["threads"], probe["cpu"]["cores"]),
    ]
    return found, [each for each in (probe["cpu"], probe["gpu"]) if each is not None]


def run_probe() -> dict[str, Any]:
    """Ask TVM in a process of its own. Raises OSError with the last line of what it said."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, json.dumps(sys.path)],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {_PROBE_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise OSError(last_line(done.stderr) or f"the process ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _cpu_without_tvm() -> dict[str, Any]:
    from tunehub.target.host import host_descriptor

    cpu = host_descriptor(use_tvm=False)
    return {"name": cpu.name, "arch": cpu.arch, "features": list(cpu.features), "cores": cpu.num_cores}


def _describe_cpu(cpu: dict[str, Any], source: str, mattr: Sequence[str] = ()) -> list[Finding]:
    """The model, the features that the CPU itself has, and where LLVM takes the model to have others."""
    features = ", ".join(cpu["features"]) or "none known"
    text = f"{cpu['name']} ({cpu['arch']}, {cpu['cores']} physical cores, {source}): {features}"
    found = Finding(name="cpu", state="ok", text=text)
    if not mattr:
        return [found]
    parts = [
        f"{verb} {', '.join(names)}"
        for verb, sign in (("also has", "+"), ("lacks", "-"))
        if (names := [name[1:] for name in mattr if name[0] == sign])
    ]
    text = f"LLVM takes this CPU for {cpu['name']}, but it {' and '.join(parts)}: its model or features are hidden"
    remedy = "give tunehub.host_target() as target, which says so (mattr): code for that model alone is slower or fails"
    return [found, Finding(name="cpu features", state="warning", text=text, remedy=remedy)]


def _describe_profile(profile: dict[str, str], rules: dict[str, str | None]) -> Finding:
    source = rules.get("profile") or "built-in rates"
    if "problem" in profile:
        remedy = f"run `tunehub calibrate` again, or delete the file; until then rules go by {source}"
        return Finding(name="machine profile", state="warning", text=profile["problem"], remedy=remedy)
    measured = profile.get("measured")
    text = f"none of your own: rules go by {source} (`tunehub calibrate` measures this CPU)"
    return Finding(name="machine profile", state="ok", text=text if measured is None else f"measured {measured}")


def _describe_gpu_profile(profile: dict[str, str]) -> list[Finding]:
    if "problem" in profile:
        remedy = "run `tunehub calibrate --device cuda` again, or delete the file; until then built-in rates hold"
        return [Finding(name="GPU profile", state="warning", text=profile["problem"], remedy=remedy)]
    return [Finding(name="GPU profile", state="ok", text=f"measured {each}") for each in profile.values()]


def _describe_precision(rules: dict[str, str | None]) -> list[Finding]:
    if "float32" not in rules:
        return []
    reason = rules["float32"]
    text = "auto is bf16 on this CPU" if reason is None else f"auto is float32 on this CPU: {reason}"
    return [Finding(name="precision", state="ok", text=text)]


def _describe_gpu(gpu: dict[str, Any] | None) -> Finding:
    return Finding(
        name="gpu", state="ok", text="none that TVM can use" if gpu is None else f"{gpu['name']} ({gpu['arch']})"
    )


def _describe_headers() -> Finding:
    from tunehub.tir.cuda.headers import HALF, TENSOR_CORES, header_folders, missing_headers

    missing = missing_headers((HALF, *TENSOR_CORES))
    if missing is None:
        return Finding(name="CUDA headers", state="ok", text=" and ".join(header_folders()))
    text = f"{missing.reason}; kernels in half precision and for tensor cores need them"
    return Finding(name="CUDA headers", state="warning", text=text, remedy=missing.remedy)


def _describe_threads(threads: int, cores: int) -> Finding:
    text = f"TVM's pool has {threads}, the machine {cores} physical cores"
    if threads >= cores:
        return Finding(name="threads", state="ok", text=text)
    remedy = f"TVM takes half of the hardware threads: set TVM_NUM_THREADS={cores} before TVM is first used"
    return Finding(name="threads", state="warning", text=text, remedy=remedy)


def _examine_cache(options: Options) -> Finding:
    remedy = "set TUNEHUB_CACHE to a folder that you can write; until then every process indexes packages anew"
    try:
        options.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=options.cache):
            pass
    except OSError as error:
        text = f"{options.cache} cannot be written: {error.strerror or error}"
        return Finding(name="cache", state="warning", text=text, remedy=remedy)
    return Finding(name="cache", state="ok", text=f"{options.cache} is writable")


def _examine_registries(options: Options, machines: Sequence[dict[str, Any]]) -> list[Finding]:
    """The registries, and what they have for these machines."""
    problems: list[HubError] = []
    warned: list[str] = []
    registries = configured_registries(
        replace(options, lock=None),
        on_problem=problems.append,
        on_warning=warned.append,
        deadline=Deadline(options.budget),
    )
    findings = [_examine_registry(registry) for registry in registries.sources]
    findings += [_describe_package(registries, machine) for machine in machines]
    unsigned = [Finding(name="registry", state="warning", text=text, remedy=_SIGN) for text in warned]
    return [*(_registry_error(problem) for problem in problems), *unsigned, *findings]


def _examine_registry(registry: Registry) -> Finding:
    try:
        names = ", ".join(sorted(registry.names())) or "no packages"
    except TunehubError as error:
        return _registry_error(error)
    if registry.address == EMBEDDED:
        return Finding(name="embedded registry", state="ok", text=names)
    shown = names if len(names) <= _MAX_NAMES else f"{names[:_MAX_NAMES]}…"
    return Finding(name=f"registry {registry.address}", state="ok", text=f"{_signatures(registry)}: {shown}")


def _describe_package(registries: Registries, machine: dict[str, Any]) -> Finding:
    """The nearest package for a machine, and what is known of its records there."""
    kind, _, model = str(machine["name"]).partition("-")
    features = tuple(machine.get("features", ()))
    aliases = tuple(machine.get("aliases", ()))
    host = TargetDescriptor(kind=kind, model=model, arch=machine["arch"], features=features, aliases=aliases)
    from tunehub.target.tvm_generation import find_tvm

    installed = find_tvm()
    try:
        chosen = registries.resolve(host, Requirement(), installed.version if installed else None).chosen
        attested = None if chosen is None else registries.attestations(chosen)
    except (TunehubError, RegistryError, OSError) as error:
        return Finding(name="package", state="warning", text=f"{host.name}: what serves it is not known: {error}")
    if chosen is None:
        return Finding(name="package", state="ok", text=f"{host.name}: none, rules alone choose")
    known = nearest_text(chosen, host.name, attested) or "made for such machines"
    return Finding(name="package", state="ok", text=f"{host.name}: {chosen.label}, {known}")


def _signatures(registry: Registry) -> str:
    """How a registry is trusted, and when that was last looked at."""
    age = registry.cache.age() if isinstance(registry, SignedRegistry | PlainRegistry) else None
    read = "" if age is None else f", read {plain_age(age)} ago"
    if not isinstance(registry, SignedRegistry):
        return f"unsigned{read}"
    root = read_root(registry.root, "root.json")
    return f"signed (root {root.version} {root.sha256[:12]}, {root.threshold} of {len(root.key_ids)} keys){read}"


def _registry_error(error: TunehubError) -> Finding:
    remedy = getattr(error, "remedy", None)
    text = getattr(error, "reason", str(error))
    return Finding(name="registry", state="error", text=text, remedy=remedy)


def _examine_rows(options: Options) -> list[Finding]:
    """The rows of packages that compiles here found to be stale, each package by itself."""
    stale: dict[str, list[str]] = {}
    for row in known_stale(options.cache):
        stale.setdefault(row.package, []).append(f"{row.op} ({row.exact[:8]})")
    remedy = "its publisher's `tunehub check --again` judges them anew; until then the faster serves by what is known"
    found = []
    for package, rows in stale.items():
        more = f" and {len(rows) - _MOST_ROWS} more" if rows[_MOST_ROWS:] else ""
        text = f"{package}: {len(rows)} rows were judged beside other rules: {', '.join(rows[:_MOST_ROWS])}{more}"
        found.append(Finding(name="stale rows", state="warning", text=text, remedy=remedy))
    return found


def _examine_compiler() -> Finding:
    from tunehub.deploy.library import COMPILER_REMEDY, found_linker

    linker = found_linker()
    if linker is None:
        text = "no C++ compiler: `tunehub compile`, `bench`, `generate` and tunehub.load link with one"
        return Finding(name="compiler", state="warning", text=text, remedy=COMPILER_REMEDY)
    return Finding(name="compiler", state="ok", text=linker)


def _examine_onnxruntime() -> Finding:
    from importlib import metadata

    try:
        return Finding(name="onnxruntime", state="ok", text=metadata.version("onnxruntime"))
    except metadata.PackageNotFoundError:
        return Finding(name="onnxruntime", state="ok", text="not installed (`bench` and `demo` compare with it)")

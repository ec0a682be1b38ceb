"""The profile of the machine that tunes: measured once for a work directory, so that a package takes it along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tunehub.exceptions import last_line
from tunehub.options import read_options
from tunehub.target.features import names_by_features
from tunehub.target.host import host_cpu, physical_cores
from tunehub.target.machine_profile import MachineProfileError, PublishedProfile, read_profile
from tunehub_builder.exceptions import PackingError
from tunehub_builder.tuning.target import TuningTarget
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.exceptions import FormatError
from tunehub_registry.machine_profile import MachineProfile, parse_profile
from tunehub_registry.target import TargetDescriptor, model_name

_WORTH = 20  # workloads: fewer are tuned in little more time than measuring takes
_LIMIT_S = 120
_COMMAND = "import sys; sys.argv[1:] = ['calibrate', '--dry-run', '--json']; from tunehub.cli import main; main()"


def keep_profile(directory: WorkDirectory, target: TuningTarget, workloads: int) -> tuple[str, ...]:
    """Put the profile of this machine into ``directory``, if it is what ``target`` is for and it is not there: the one
    that its user has made, else one that is measured now where so many ``workloads`` are tuned. Returns notes.

    Raises WorkDirectoryError when the disk refuses.
    """
    cpu = host_cpu()
    if cpu is None or directory.profile() is not None or not _is_here(target, cpu.model, cpu.mattr):
        return ()
    try:
        found = read_profile(read_options().cache, cpu.model, cpu.mattr, physical_cores())
    except MachineProfileError:
        found = None
    try:
        found = found or (measured() if workloads >= _WORTH else None)
    except OSError as error:
        return (f"the machine's profile was not measured, so that a package will have none: {error}",)
    if found is not None:
        directory.save_profile(found)
    return ()


@contextmanager
def kept_rates(directory: WorkDirectory) -> Iterator[None]:
    """Inside, rules go by the profile of ``directory``, as clients of its package do: which workloads a network has
    depends on it (docs/adr/0080-one-meaning-of-stale.md)."""
    from tunehub.kernels.template_fit import published_rates  # not of TVM up to 0.19

    profile = directory.profile()
    published = None if profile is None else PublishedProfile(profile=profile, package=str(directory.path))
    with published_rates(published):
        yield


def measured() -> MachineProfile:
    """This machine's profile, by `tunehub calibrate` in a process of its own. Raises OSError with what that said."""
    environment = {**os.environ, "TVM_NUM_THREADS": str(physical_cores())}
    command = [sys.executable, "-c", _COMMAND]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {_LIMIT_S} s") from None
    if done.returncode != 0:
        raise OSError(last_line(done.stderr) or f"the process ended with {done.returncode}")
    answer = json.loads(done.stdout)
    return msgspec.convert({name: answer[name] for name in MachineProfile.__struct_fields__}, MachineProfile)


def profile_to_pack(
    directory: WorkDirectory | None, file: Path | None, target: TargetDescriptor
) -> MachineProfile | None:
    """The profile in ``file``, else that of ``directory``, if any, for a package of ``target``. Raises PackingError for
    a file that holds none, or one of another CPU; WorkDirectoryError for a damaged directory."""
    if file is None:
        return None if directory is None else directory.profile()
    try:
        profile = parse_profile(file.read_bytes(), str(file))
    except (OSError, FormatError) as error:
        raise PackingError(f"{error}; give a file that `tunehub calibrate` has written") from error
    names = map(model_name, (profile.cpu, *names_by_features(profile.cpu, profile.mattr)))
    if target.kind != "llvm" or target.model not in names:
        raise PackingError(f"{file} is the profile of {profile.cpu}; the package is for {target.name}")
    return profile


def _is_here(target: TuningTarget, cpu: str, mattr: tuple[str, ...]) -> bool:
    config = target.config
    own = (config.get("mcpu"), sorted(config.get("mattr", ())))
    known = [(cpu, sorted(mattr)), *((name, list[str]()) for name in names_by_features(cpu, mattr))]
    return config.get("kind") == "llvm" and own in known

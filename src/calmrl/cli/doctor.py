"""`calmrl doctor`: what is installed, and what this machine can do."""

import os
import platform
import re
import textwrap
from importlib import metadata
from typing import Annotated, Any

import typer

from calmrl.cli.printing import as_json, data
from calmrl.cli.shared_options import AddressOption, EngineOption

EXAMPLE = "Example:\n  calmrl doctor\n  calmrl doctor --json\n  calmrl doctor --engine ray"


def run(
    engine: EngineOption = "local",
    address: AddressOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is installed, and whether it works.

    Versions, devices, extras, the default encoders and what an engine would use. Each encoder tries
    one tiny text, picture or sound.
    """
    from calmrl._support.engine import opened

    report = examine()
    with opened(engine, address) as started:
        report["engine"] = {"name": started.name, "uses": started.describe()}
    report["encoders"] = try_encoders()
    if json:
        as_json(report)
        return
    lines = [f"{name:<10} {value}" for name, value in report["system"].items()]
    lines += ["", "packages", *(f"  {name:<24} {version or 'missing'}" for name, version in report["packages"].items())]
    lines += ["", "extras"]
    for extra, packages in report["extras"].items():
        absent = [name for name, version in packages.items() if version is None]
        state = f'absent: pip install "calmrl[{extra}]"' if absent else "installed"
        lines.append(f"  {extra:<24} {state}")
        if absent:
            lines += textwrap.wrap(
                f"lacks {', '.join(absent)}", 79, initial_indent=" " * 27, subsequent_indent=" " * 33
            )
    lines += ["", "encoders"]
    for kind, entry in report["encoders"].items():
        lines.append(f"  {kind:<7} {entry['name']:<19} {'works' if entry['works'] else 'does not work'}")
        if entry["why"]:
            lines += textwrap.wrap(entry["why"], 79, initial_indent=" " * 10, subsequent_indent=" " * 10)
    lines += ["", f"engine {report['engine']['name']}", *(f"  {line}" for line in report["engine"]["uses"])]
    data("\n".join(lines))


def examine() -> dict[str, Any]:
    """Versions, devices, and per extra the version of each package it brings (None: not installed)."""
    import torch

    devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    system = {
        "calmrl": metadata.version("calmrl"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": ", ".join(["cpu", *devices]),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
    packages: dict[str, str | None] = {}
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in metadata.requires("calmrl") or []:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        name = match.group() if match else requirement
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", requirement)
        (extras.setdefault(extra.group(1), {}) if extra else packages)[name] = _version(name)
    return {"system": system, "packages": packages, "extras": extras}


def try_encoders() -> dict[str, dict[str, Any]]:
    """Per kind of file the default encoder, whether it works here, and why not."""
    from calmrl.encoders.encoder_set import try_encoder
    from calmrl.encoders.registry import DEFAULTS, default_encoders
    from calmrl.errors import MissingExtraError

    tried = {}
    for kind, name in DEFAULTS.items():
        try:
            default_encoders({kind: "audio" if kind == "speech" else kind})
            why = try_encoder(kind, name)
        except MissingExtraError as error:
            why = str(error)
        tried[kind] = {"name": name, "works": why is None, "why": why}
    return tried


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

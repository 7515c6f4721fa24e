"""Everything that must hold before a release is published, in the order in which it fails fastest.

python scripts/release_check.py                       # what `make release-check` and the release workflow run
python scripts/release_check.py --versions lowest     # with the oldest allowed version of every dependency
python scripts/release_check.py --versions highest    # with the newest ones
python scripts/release_check.py --versions lowest --extras    # also those of the extras, or of some of them: --extras ray
python scripts/release_check.py --python python3.13 --tests    # another Python, and the fast part of the suite
python scripts/release_check.py --python python3.13 --light    # without torch

1. The version is the same in pyproject.toml, CITATION.cff and CHANGELOG.md (a tag of the release, if --tag names one).
2. Two builds, in two folders, give the same bytes; the wheel is small enough and holds what it must.
3. `twine check` accepts both files.
4. The wheel installs into an empty environment outside the checkout, where scripts/try_python.py imports every module, and
   `calmrl` and the snippets of README and quickstart run. With --light, torch is left out, and the tests that need none run
   in place of the snippets.
5. With --tests, what the tests need is installed beside it, and the fast part of the suite runs, or some folders of it.
6. With --extras, one extra after the other is installed at its lowest versions, and some tests of it run.

torch stays at the version of constraints.txt in all of them: other builds of it can be gigabytes large.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 30_000_000  # bytes of the wheel
MUST_HOLD = (
    "calmrl/py.typed",
    "calmrl/__init__.pyi",
    "calmrl/datasets/stamps.npz",
    "calmrl/datasets/emoji_NOTICE.txt",
    "calmrl/aligner/bases/named-things/aligner.safetensors",
    "calmrl/aligner/bases/named-things_NOTICE.txt",
)
REQUIREMENT = re.compile(r'^\s*"([A-Za-z0-9_.-]+)>=([0-9.]+)[",]', re.MULTILINE)
LEFT_OUT = ("torch", "accelerate")  # by --light
EXTRAS = {  # extra -> what pytest runs for it
    "media": ["tests/data/media/test_media.py", "tests/data/media/test_images.py"],
    "search": ["tests/search/test_index_features.py", "tests/search/test_syntax.py"],
    "serve": ["tests/server/test_api.py"],
    "mcp": ["tests/server/test_mcp.py"],
    "hub": ["tests/hub"],
    "interop": ["tests/interop/test_round_trips.py", "tests/interop/test_annotated.py"],
    "track": ["tests/training/test_train_run.py", "-k", "tensorboard"],
    "lora": ["tests/models/test_models_joint.py", "-k", "lora"],
    "sentence-transformers": ["tests/encoders/test_sentence_transformers.py"],
    "mteb": ["tests/interop/test_mteb.py"],
    "ray": ["tests/engines/test_ray.py"],
}
SLOW = ("ray", "browser", "processes", "soak")  # markers of tests that --tests leaves out
SUITE = "dev,media,search"  # the extras that the suite needs; it skips tests of others
TESTING = ("pytest", "hypothesis", "httpx", "httpx2")
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")  # import compiles what is used
CONSTRAINTS = "constraints.txt"
UNDECLARED = "pyarrow<26"  # 26 needs numpy 2 and does not say so; the lowest numpy is older


def main() -> None:
    options = parsed()
    version = check_version(options.tag)
    with tempfile.TemporaryDirectory(prefix="calmrl-release-") as scratch:
        folder = Path(scratch)
        wheel, sdist = built_twice(folder)
        check_contents(wheel, version)
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        python = installed(folder, wheel, options)
        check_installed(folder, python, version, options.light)
        if options.tests is not None:
            check_suite(folder, python, wheel, options.tests)
        if options.extras is not None:
            check_extras(folder, python, wheel, options.extras or list(EXTRAS))
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            for file in (wheel, sdist):
                shutil.copy(file, options.out)
    print(f"calmrl {version} can be released")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", choices=("pinned", "lowest", "highest"), default="pinned")
    parser.add_argument("--python", default=sys.executable, help="the Python of the empty environment")
    parser.add_argument("--light", action="store_true", help="install without torch and run only what needs none")
    parser.add_argument(
        "--tests", nargs="*", metavar="PATH", help="also run the fast part of the suite, all of it or these paths"
    )
    parser.add_argument(
        "--extras", nargs="*", choices=EXTRAS, help="also try extras, all or some, at their lowest versions"
    )
    parser.add_argument("--tag", help="the tag that is released, such as v0.1.0; CHANGELOG.md must have its version")
    parser.add_argument("--out", type=Path, help="where to leave the wheel and the sdist")
    options = parser.parse_args()
    if options.light and (options.tests is not None or options.extras is not None):
        parser.error("--tests and --extras need torch, which --light leaves out; --light runs the tests that need none")
    return options


# ---- 1. the version


def check_version(tag: str | None) -> str:
    """The version of pyproject.toml, which is the only place that sets it; others repeat it."""
    version = search(r'^version = "([^"]+)"', "pyproject.toml")
    cited = search(r"^version: (\S+)", "CITATION.cff")
    if cited != version:
        raise SystemExit(f"CITATION.cff has version {cited}, pyproject.toml {version}")
    if tag is not None:
        if tag.removeprefix("v") != version:
            raise SystemExit(f"the tag {tag} is not version {version} of pyproject.toml")
        search(rf"^## {re.escape(version)}\b", "CHANGELOG.md")
    return version


def search(pattern: str, file: str) -> str:
    match = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"{file} has no line like {pattern}")
    return match[1] if match.groups() else match[0]


# ---- 2. the files


def built_twice(folder: Path) -> tuple[Path, Path]:
    """Wheel and sdist of what git tracks, built in two folders at two times; an error if a byte differs."""
    date = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": date.stdout.strip()}
    sums = []
    for number in ("one", "two"):
        copy = folder / number / "calmrl"
        tracked_files(copy)
        run(sys.executable, "-m", "build", "--outdir", folder / number / "dist", copy, env=environment)
        files = sorted((folder / number / "dist").iterdir())
        sums.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
    if sums[0] != sums[1]:
        raise SystemExit(f"two builds differ: {sums[0]} and {sums[1]}")
    for name, digest in sums[0].items():
        print(f"{name}: {(folder / 'one' / 'dist' / name).stat().st_size:,} bytes, sha256 {digest}, twice")
    (sdist,) = (folder / "one" / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "one" / "dist").glob("*.whl")
    return wheel, sdist


def tracked_files(target: Path) -> None:
    """Copy what git tracks, as it is now: files that lie around do not get into a release."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target / name)


def check_contents(wheel: Path, version: str) -> None:
    size = wheel.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"the wheel has {size:,} bytes; at most {LARGEST:,} are allowed")
    names = zipfile.ZipFile(wheel).namelist()
    absent = [name for name in (*MUST_HOLD, f"calmrl-{version}.dist-info/licenses/LICENSE") if name not in names]
    if absent:
        raise SystemExit(f"the wheel lacks {', '.join(absent)}")
    foreign = [name for name in names if name.split("/")[0] not in ("calmrl", f"calmrl-{version}.dist-info")]
    if foreign:
        raise SystemExit(f"the wheel holds {foreign[0]}, which is not part of the package")


# ---- 4. an empty environment


def installed(folder: Path, wheel: Path, options: argparse.Namespace) -> Path:
    """The Python of a new environment with the wheel in it."""
    run(options.python, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (folder / CONSTRAINTS).write_text(constraints_of(options.versions), encoding="utf-8")
    install = [python, *PIP, "-c", folder / CONSTRAINTS]
    if options.light:
        wanted = {**core_requirements(), **extra_requirements("media")}
        run(*install, *TESTING, *(f"{name}>={low}" for name, low in wanted.items() if name not in LEFT_OUT))
        run(*install, "--no-deps", wheel)
    else:
        run(*install, wheel)
    return python


def core_requirements() -> dict[str, str]:
    """Name -> lowest version of the dependencies that everyone gets."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(REQUIREMENT.findall(text.partition("\ndependencies = [")[2].partition("\n]")[0]))


def constraints_of(versions: str) -> str:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = next(line for line in pinned.splitlines() if line.startswith("torch=="))
    if versions == "pinned":
        return pinned
    if versions == "highest":
        return torch + "\n"
    lowest = [f"{name}=={low}" for name, low in core_requirements().items() if name != "torch"]
    return "\n".join([torch, *lowest]) + "\n"


def check_installed(folder: Path, python: Path, version: str, light: bool) -> None:
    """What a new user does first, in an empty directory, with no checkout in sight."""
    work = folder / "work"
    work.mkdir()
    environment = without_checkout()
    shown = run(python.parent / "calmrl", "--version", cwd=work, env=environment, capture=True)
    if shown.strip() != f"calmrl {version}":
        raise SystemExit(f"calmrl --version printed {shown!r}; expected calmrl {version}")
    run(python.parent / "calmrl", "ls", "methods", cwd=work, env=environment, capture=True)
    run(python.parent / "calmrl", "demo", "--help", cwd=work, env=environment, capture=True)
    run(python, ROOT / "scripts" / "try_python.py", *([tests_only(folder)] if light else []), cwd=work, env=environment)
    if not light:
        shutil.copy(ROOT / "scripts" / "page_snippets.py", work)
        for page in ("README.md", "docs/start/quickstart.md"):
            shutil.copy(ROOT / page, work)
            run(python, "page_snippets.py", Path(page).name, cwd=work, env=environment)
    run(python, "-m", "pip", "freeze", "--disable-pip-version-check", cwd=work)


def without_checkout() -> dict[str, str]:
    """The environment of this process, but for the one variable that could put other sources first."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def tests_only(folder: Path) -> Path:
    """The checkout without the sources: what its tests import is the installed wheel."""
    tests = folder / "checkout"
    tracked_files(tests)
    shutil.rmtree(tests / "src")
    return tests


# ---- 5. the fast part of the suite


def check_suite(folder: Path, python: Path, wheel: Path, paths: list[str]) -> None:
    """In a copy of the checkout, as some tests read the sources; these are the same as in the wheel."""
    run(python, *PIP, "-c", folder / CONSTRAINTS, f"calmrl[{SUITE}] @ {wheel.as_uri()}")
    run(python, "-m", "pip", "check")
    tracked_files(folder / "suite")
    fast = " and ".join(f"not {marker}" for marker in SLOW)
    run_tests(python, folder / "suite", "-n", "2", "--dist", "loadscope", "-m", fast, *paths)


# ---- 6. the extras


def extra_requirements(extra: str) -> dict[str, str]:
    """Name -> lowest version of the packages of an extra."""
    listed = search(rf"^{re.escape(extra)} = \[(.*)\]$", "pyproject.toml")
    return dict(re.findall(r'"([A-Za-z0-9_.-]+)>=([0-9.]+)', listed))


def check_extras(folder: Path, python: Path, wheel: Path, extras: list[str]) -> None:
    """One after the other in the same environment, beside the core as it is; what an extra needs newer, pip makes newer."""
    tests = tests_only(folder)
    failed = []
    for extra in extras:
        constraints = folder / f"{extra}.txt"
        lowest = [f"{name}=={low}" for name, low in extra_requirements(extra).items()]
        constraints.write_text(
            "\n".join([constraints_of("highest").strip(), UNDECLARED, *lowest]) + "\n", encoding="utf-8"
        )
        try:
            run(python, *PIP, "-c", constraints, f"calmrl[{extra}] @ {wheel.as_uri()}", *TESTING)
            run_tests(python, tests, *EXTRAS[extra])
        except SystemExit as stop:
            failed.append(f"{extra} ({stop})")
    if failed:
        raise SystemExit(f"extras that fail at their lowest versions: {', '.join(failed)}")


def run_tests(python: Path, checkout: Path, *options: str) -> None:
    environment = without_checkout() | {"OMP_NUM_THREADS": "1"}  # as `make test`
    run(python, "-m", "pytest", "-p", "no:cacheprovider", *options, cwd=checkout, env=environment)


def run(*line: object, cwd: Path | None = None, env: dict[str, str] | None = None, capture: bool = False) -> str:
    print("+", *line, flush=True)
    done = subprocess.run(
        [str(part) for part in line],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}")
    return done.stdout or ""


if __name__ == "__main__":
    main()

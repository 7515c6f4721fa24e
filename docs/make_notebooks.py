"""The notebooks of the documentation: run them, keep their output, and show them as pages.

python docs/make_notebooks.py             # runs docs/notebooks/*.ipynb, saves them with output, writes the pages
python docs/make_notebooks.py --pages     # writes the pages only
python docs/make_notebooks.py --check     # fails if a page is not what its notebook gives
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
SECONDS = 600  # a cell that takes longer is an error
MARK = "<!-- not run: a test runs the notebook -->"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*", help="of notebooks; all by default")
    options = parser.parse_args()
    paths = [FOLDER / f"{name}.ipynb" for name in options.names] or sorted(FOLDER.glob("*.ipynb"))
    stale = []
    for path in paths:
        if not (options.pages or options.check):
            nbformat.write(executed(path), path)
            print(f"{path.name}: ran")
        files = page(path)
        stale += [file.name for file, content in files.items() if not same(file, content)]
        if not options.check:
            for file, content in files.items():
                file.write_bytes(content)
    if options.check and stale:
        sys.exit(f"{', '.join(stale)}: not what the notebook gives; run python docs/make_notebooks.py --pages")


def executed(path: Path) -> Any:
    """The notebook with new output; an error in a cell is raised. The kernel sees the calmrl of this checkout."""
    notebook = nbformat.read(path, as_version=4)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *([inherited] if inherited else [])])
    try:
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", record_timing=False).execute()
    finally:
        if inherited is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = inherited
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined([output for output in cell.outputs if not is_noise(output)])
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def is_noise(output: Any) -> bool:
    """Warnings and progress of libraries."""
    return output.output_type == "stream" and output.name == "stderr"


def joined(outputs: list[Any]) -> list[Any]:
    """What a cell printed as one text; a kernel sends it in pieces that depend on the moment."""
    whole: list[Any] = []
    for output in outputs:
        if whole and output.output_type == whole[-1].output_type == "stream":
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def page(path: Path) -> dict[Path, bytes]:
    """File -> content: the page of a notebook in Markdown, and its pictures."""
    notebook, parts, files = nbformat.read(path, as_version=4), [], {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"{MARK}\n```python\n{cell.source}\n```")
        for output in cell.outputs:
            picture = output.get("data", {}).get("image/png")
            if picture:
                file = path.with_name(f"{path.stem}-{number}.png")
                files[file] = base64.b64decode(picture)
                parts.append(f"![Output of the cell above]({file.name})")
            else:
                parts.append(f"```text\n{shown(output)}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    download = f"*This page is the notebook [{path.name}]({path.name}) with its output.*"
    files[path.with_suffix(".md")] = f"{title}\n\n{download}\n{rest}\n".encode()
    return files


def shown(output: Any) -> str:
    text = output.text if output.output_type == "stream" else output["data"]["text/plain"]
    return ANSI.sub("", text).rstrip()


def same(file: Path, content: bytes) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(content).digest()


if __name__ == "__main__":
    main()

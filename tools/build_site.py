"""Build the site: python tools/build_site.py [--clean] [--strict] [--links]

Stored outputs are all it needs: no torch, no kernel. ``--strict`` builds from a clean tree with warnings as errors,
as CI does (a warning is only reported for a page that is read again); ``--links`` asks the cited addresses instead.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", action="store_true", help="remove _build first")
    parser.add_argument("--strict", action="store_true", help="clean, and warnings are errors")
    parser.add_argument("--links", action="store_true", help="check external links instead of writing pages")
    options = parser.parse_args()
    if options.clean or options.strict:
        shutil.rmtree(ROOT / "_build", ignore_errors=True)
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(ROOT), "--quiet"]
    if options.strict:
        command += ["--warningiserror", "--keep-going"]
    if options.links:
        command += ["--builder", "linkcheck"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

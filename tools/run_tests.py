"""Everything CI runs, in order: python tools/run_tests.py [step ...]

Steps: lint, types, units, site, pages, labs. All run even if one fails; the exit status is 1 if any did.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-q"]
WORKERS = ["-n", str(min(os.cpu_count() or 1, 4)), "--dist", "loadfile"]  # a notebook's cells share one kernel
STEPS: dict[str, list[list[str]]] = {
    "lint": [["ruff", "check", "."], ["ruff", "format", "--check", "."]],
    "types": [["mypy"]],
    "units": [
        [
            *PYTEST, *WORKERS, "--doctest-modules", "src/infrabook", "tests",
            "--ignore=tests/browser", "--ignore=tests/site",
        ]
    ],
    "site": [[sys.executable, "tools/build_site.py", "--strict"]],
    "pages": [[*PYTEST, "tests/site", "tests/browser"]],
    "labs": [
        [
            *PYTEST, *WORKERS, "--nbval", "--nbval-current-env", "--nbval-sanitize-with=tests/nbval.cfg",
            "--nbval-cell-timeout=300", "notebooks",
        ]
    ],
}  # fmt: skip


def main() -> int:
    asked = sys.argv[1:] or list(STEPS)
    unknown = set(asked) - set(STEPS)
    if unknown:
        sys.exit(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    failed = []
    for step in asked:
        for command in STEPS[step]:
            began = time.monotonic()
            print(f"== {step}: {' '.join(Path(part).name if '/' in part else part for part in command)}", flush=True)
            if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
                failed.append(step)
            print(f"== {step}: {time.monotonic() - began:.0f} s", flush=True)
    passed = len(asked) - len(set(failed))
    print(f"steps: {passed} passed, {len(set(failed))} failed" + (f" ({', '.join(failed)})" if failed else ""))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

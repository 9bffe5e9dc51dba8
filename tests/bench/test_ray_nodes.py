"""benchmarks/ray_nodes.py where it may not make network namespaces."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ray_nodes.py"


@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, False])
def test_where_namespaces_are_not_allowed_it_says_so_and_ends_with_code_2(installed: bool, tmp_path: Path) -> None:
    if installed:
        program = tmp_path / "ip"
        program.write_text("#!/bin/sh\necho 'RTNETLINK answers: Operation not permitted' >&2\nexit 2\n")
        program.chmod(0o700)
    done = subprocess.run(
        [sys.executable, SCRIPT, "logistic", "--nodes", "1"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert done.returncode == 2, done.stderr
    assert "network namespaces cannot be made here" in done.stderr
    assert ("Operation not permitted" if installed else "iproute2) is not installed") in done.stderr
    assert "Traceback" not in done.stderr

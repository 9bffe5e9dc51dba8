"""The peers' environments, one folder each, made when they are not there.

Peers pin packages that would not go together. The torch at hand comes first, so that all of them have the same.
"""

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".envs"
TORCH = "torch>=2.6,<2.14"
PACKAGES = {"pfl": "pfl[pytorch]>=0.6,<0.7", "flower": "flwr[simulation]>=1.38,<2"}


def make(peer: str) -> Path:
    """The folder of the programs of a peer's environment, which is there from now on."""
    if peer not in PACKAGES:
        return Path(sys.executable).parent
    folder = ENVIRONMENTS / peer
    done = folder / "installed"
    if not done.exists():
        print(f"making {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        for packages in ([TORCH], [TORCH, PACKAGES[peer]]):
            command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(command, check=True)
        done.touch()
    return folder / "bin"

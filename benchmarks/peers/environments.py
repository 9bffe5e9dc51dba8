"""The peers' environments, one folder each, made if missing.

The peers' pinned packages conflict. The installed torch comes first, so that all of them use the same one.
"""

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".envs"
TORCH = "torch>=2.6,<2.14"
PACKAGES = {
    "pfl": ["pfl[pytorch]>=0.6,<0.7"],
    "flower": ["flwr[simulation]>=1.38,<2"],
    # What fluke asks for, without torchvision, which has no build that goes with this torch, and loggers.
    "fluke": [
        "numpy",
        "pandas",
        "scikit-learn",
        "torchmetrics",
        "rich",
        "typer",
        "datasets",
        "psutil",
        "matplotlib",
        "seaborn",
        "diskcache",
        "cerberus",
        "hydra-core",
        "requests",
        "pyyaml",
        "omegaconf",
        "pillow",
    ],
}
ALONE = {"fluke": "fluke-fl>=0.8,<0.9"}
"""Installed without what they ask for."""


def make(peer: str) -> Path:
    """The folder of programs in a peer's environment, which is made if missing."""
    if peer == "tutorial":
        peer = "flower"
    if peer not in PACKAGES:
        return Path(sys.executable).parent
    folder = ENVIRONMENTS / peer
    done = folder / "installed"
    if not done.exists():
        print(f"making {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        steps = [[TORCH], [TORCH, *PACKAGES[peer]]]
        if peer in ALONE:
            steps.append(["--no-deps", ALONE[peer]])
        for packages in steps:
            command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(command, check=True)
        done.touch()
    return folder / "bin"

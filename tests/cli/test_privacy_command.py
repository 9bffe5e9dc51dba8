"""`fedacg privacy`: the third of ε, noise and rounds, without torch, and clear words for what does not fit."""

import subprocess
import sys

import pytest

from support.command import Command, refused


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--epsilon=8", "--rounds=100", "--clients=300", "--cohort=30"), "noise     z = 0.936 times the clip"),
        (("--epsilon=8", "--noise=1", "--clients=300", "--cohort=30"), "rounds    129"),
        (("--noise=1", "--rounds=1"), "epsilon   4.3772 by the Gaussian's own curve, at δ = 1e-05"),
        (("--noise=2", "--rounds=1", "--kind=local-dp"), "epsilon   4.3772 by the Gaussian's own curve"),
        (("--noise=1", "--rounds=1", "--kind=dpftrl", "--bands=1"), "epsilon   4.3772"),
        (("--noise=0.3", "--epsilon=1"), "the first round alone costs 19.1308"),
        (
            ("--noise=1", "--rounds=1", "--clients=300", "--delta=0.01"),
            "warning   δ = 0.01 is at least 1/300",
        ),
    ],
)
def test_the_third_is_found(fedacg: Command, options: tuple[str, ...], found: str) -> None:
    assert found in fedacg("privacy", *options).out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--epsilon=8",), "give exactly two; the third is computed"),
        (("--epsilon=8", "--noise=1", "--rounds=3"), "give exactly two; the third is computed"),
        (("--epsilon=-1", "--noise=1"), "--epsilon -1: must be above 0"),
        (("--noise=1", "--rounds=0"), "--rounds 0: must be at least 1"),
        (("--noise=1", "--rounds=1", "--delta=1"), "--delta 1: must be between 0 and 1"),
        (("--noise=1", "--rounds=1", "--cohort=5"), "--cohort 5: needs --clients"),
        (("--noise=1", "--rounds=1", "--cohort=5", "--clients=4"), "must be from 1 to the 4 clients"),
        (("--noise=1", "--rounds=1", "--cohort=5", "--kind=local-dp"), "does not amplify privacy with local-dp"),
    ],
)
def test_what_does_not_fit_is_refused(fedacg: Command, options: tuple[str, ...], reason: str) -> None:
    refused(fedacg("privacy", *options), reason)


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; import fedacg.cli.lookup, fedacg.core.accounting as a; a.Gaussian(1.0, 0.1).epsilon(3, 1e-5)"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)

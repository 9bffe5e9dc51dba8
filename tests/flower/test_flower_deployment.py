"""The example app as it is meant to be run: by the commands of its README, and on a real federation.

The federation is one SuperLink and three SuperNodes with TLS and keys. It is started once; the tests are about
what happened to it.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.federation_keys import write_node_key
from support.federation_processes import Deployment, Processes, free_port

APP = Path(__file__).parents[2] / "examples" / "flower"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc"),
]


@dataclass(frozen=True)
class Story:
    """What happened: three rounds; in the third, node 0 is killed; a node without a registered key comes by."""

    printed: str
    status: str
    stranger: str
    server: str
    foreign: list[str]
    guarded: set[str]
    left_behind: list[int]

    def rounds(self) -> list[str]:
        """What was printed in each round."""
        return re.split(r"\[ROUND \d/3\]", self.printed)[1:]

    def accuracies(self) -> list[float]:
        return [float(value) for value in re.findall(r"'accuracy': (0\.\d+)", self.printed)]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("federation")
    write_node_key(folder / "stranger")
    with Deployment(folder, nodes=3, tls=True) as deployment:
        deployment.start_node("stranger", {"partition-id": 0, "num-partitions": 3})
        run = deployment.run(APP, rounds=3)
        deployment.wait_for("node-0", r"(?s)(Start `flwr-clientapp` process.*){3}")
        deployment.kill("node-0")
        status = run.wait()
        foreign, guarded = deployment.foreign(), deployment.guarded()
        logs = [deployment.log(name) for name in ("stranger", "server")]
    return Story(run.text, status, *logs, foreign, guarded, list(deployment.alive()))


def test_three_nodes_learn_digits_over_tls(story: Story) -> None:
    assert all("Received 3 results and 0 failures" in printed for printed in story.rounds()[:2])
    before, *after = story.accuracies()
    assert len(after) == 3
    assert before < 0.2 < after[-1]


def test_a_run_outlives_a_node_that_is_killed_in_the_middle_of_a_round(story: Story) -> None:
    assert "Received 2 results and 1 failures" in story.rounds()[2]
    assert story.status == "finished:completed"


def test_a_node_whose_key_is_not_registered_is_refused(story: Story) -> None:
    assert "Failed to activate SuperNode" in story.stranger
    assert "SuperNode ID" not in story.stranger
    assert "No SuperNode found with the given public key" in story.server
    assert "Sampled 3 nodes (out of 3)" in story.printed


def test_nothing_but_loopback_is_contacted(story: Story) -> None:
    programs = {
        "flower-superlink",
        "flower-supernode",
        "flower-superexec",
        "flwr-serverapp",
        "flwr-clientapp",
        "flwr",
    }
    assert programs <= story.guarded
    assert story.foreign == []


def test_no_process_is_left_behind(story: Story) -> None:
    assert story.left_behind == []


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Ray's sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    yield folder
    shutil.rmtree(folder)


def test_the_three_commands_of_the_readme_run_it(tmp_path: Path, short_folder: Path) -> None:
    first = re.search(r"^```bash\n(.*?)^```$", (APP / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert first
    install, *commands = first[1].splitlines()
    assert install.startswith("pip install 'fedacg[flower]' ")
    assert len(commands) == 2
    with Processes(tmp_path) as processes:
        processes.start(
            "simulation",
            *("bash", "-c", "\n".join([f"cd {APP.parent.parent}", *commands])),
            FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=str(free_port()),
            FLWR_LOCAL_CONTROL_API_PORT=str(free_port()),
            RAY_TMPDIR=str(short_folder),
            FEDACG_TEST_CONNECTIONS="",  # Ray speaks to itself by the address that others know it by
        )
        processes.wait_for("simulation", "Strategy execution finished")
        accuracies = re.findall(r"'accuracy': (0\.\d+)", processes.log("simulation"))
    assert len(accuracies) == 6
    assert float(accuracies[0]) < 0.2 < 0.7 < float(accuracies[-1])

"""The result card: read from the runs, whole, and the same facts for people and for programs."""

import json
from pathlib import Path

from fedacg import __version__
from fedacg.config.experiment import Experiment
from fedacg.report import write
from fedacg.runs.build import load_data, prepare
from fedacg.runs.history import human_bytes
from fedacg.runs.provenance import commit
from fedacg.runs.runner import play
from support.folders import fake_run
from support.runs import tiny


def test_a_card_holds_what_the_runs_say(tmp_path: Path) -> None:
    runs = [tiny(tmp_path, "rounds=2", f"seed={seed}", "seeds.weights=7") for seed in (1, 2)]
    results = [play(each, prepare(each), folder=tmp_path / "runs" / str(each.seed)) for each in runs]
    write([tmp_path / "runs"], tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text(encoding="utf-8"))
    assert card["experiments"] == ["tiny"]
    assert card["data"] == ["digits"]
    assert card["seeds"] == {"split": [1, 2], "weights": [7], "cohorts": [1, 2], "batches": [1, 2]}
    assert (len(card["checksums"]["test"]), len(card["checksums"]["split"])) == (1, 2)
    budget = card["budget"]
    assert (budget["runs"], budget["rounds"], budget["visits"], budget["unfinished"]) == (2, 4, 12, 0)
    assert budget["bytes"] == sum(result.history.total_bytes for result in results)
    assert [each["vector_sha256"] for each in card["runs"]] == [r.summary["vector_sha256"] for r in results]
    assert card["commits"] == ([commit()] if commit() else [])
    assert card["versions"][0]["fedacg"] == __version__
    assert card["machines"][0]["cores"] >= 1
    text = (tmp_path / "out" / "card.md").read_text(encoding="utf-8")
    assert f"memory {human_bytes(card['machines'][0]['memory'])}" in text
    assert str(card["machines"][0]["memory"]) not in text
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Result card</h2>" in page
    assert card["checksums"]["test"][0][:16] in (tmp_path / "out" / "card.md").read_text(encoding="utf-8")


def checksums(experiment: Experiment) -> dict[str, str]:
    found = load_data(experiment).checksums
    assert found is not None
    return dict(found)


def test_checksums_follow_the_data_and_the_split(tmp_path: Path) -> None:
    plain = checksums(tiny(tmp_path))
    assert checksums(tiny(tmp_path, "seed=9", "seeds.split=4")) == plain
    dealt = checksums(tiny(tmp_path, "seeds.split=9"))
    assert (dealt["test"] == plain["test"], dealt["split"] == plain["split"]) == (True, False)
    fewer = checksums(tiny(tmp_path, "evaluate.examples=100"))
    assert (fewer["test"] == plain["test"], fewer["split"] == plain["split"]) == (False, True)


def test_a_card_of_older_runs_leaves_out_what_they_did_not_write(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", [0.5])
    fake_run(tmp_path / "b", [0.6], seed=1, finished=False)
    write([tmp_path], tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text(encoding="utf-8"))
    assert (card["commits"], card["machines"], card["checksums"]["split"]) == ([], [], [])
    assert card["budget"]["unfinished"] == 1
    assert "1 of them unfinished" in (tmp_path / "out" / "card.md").read_text(encoding="utf-8")


def test_what_a_run_folder_claims_is_escaped(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "a", [0.5])
    claimed = {"commit": "<script>alert(1)</script>", "machine": [1], "checksums": 3}
    (folder / "summary.json").write_text(json.dumps(claimed))
    write([tmp_path], tmp_path / "out")
    assert "<script>alert" not in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")

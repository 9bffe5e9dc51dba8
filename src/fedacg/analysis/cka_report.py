"""How alike the local models of a recorded round see, layer by layer: CKA of runs.

The similarity itself is in `cka`, the picture in `pictures`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedacg.analysis import captions, pictures
from fedacg.analysis.cka import LocalModels, layerwise
from fedacg.analysis.lines import over_seeds
from fedacg.analysis.load import Subject, together
from fedacg.analysis.result import Drawing, Finding, Watcher, by_group, summary_column, to_csv
from fedacg.analysis.surface import sample_test
from fedacg.models import StagedModel
from fedacg.simulation.drift import stage_slices

_BATCH = 250
"""Test examples that are compared with one another at a time: more take more memory, fewer are rougher."""


def cka_of(subjects: Sequence[Subject], round: int, examples: int, exact: bool, watcher: Watcher) -> Finding:
    """CKA between all local models of a round on so many test examples, the mean over pairs, for every layer."""
    found: dict[Path, list[float]] = {}
    layers: list[str] = []
    used = 0
    for ingredients, part in together(subjects):
        seed = part[0].experiment.seed
        chosen = sample_test(ingredients.data, examples, seed)
        layers, used = list(stage_slices(ingredients.module)), len(chosen)
        for subject in part:
            recorded = subject.load(round)
            models = LocalModels(ingredients, recorded)
            passes = 1 if exact else -(-used // _BATCH)
            with watcher.work(f"CKA of {subject.run.label}", len(recorded.clients) * passes) as step:
                batches = models.inputs(chosen, _BATCH, seed)
                found[subject.folder] = layerwise(_Watched(models, step), batches, exact=exact)
    lines = [over_seeds(g[0].ink, [dict(enumerate(found[s.folder])) for s in g]) for g in by_group(subjects)]
    rows = [
        [subject.ink.label, subject.run.seed, round, layer, value]
        for subject in subjects
        for layer, value in zip(layers, found[subject.folder], strict=True)
    ]
    title, caption, alt = captions.CKA
    caption = caption.format(round=round, examples=used)
    return Finding(
        [Drawing("cka", title, caption, alt, pictures.cka(layers, lines, round))],
        {"cka.csv": to_csv(["method", "seed", "round", "layer", "cka"], rows)},
        [summary_column("CKA of outputs", subjects, [found[s.folder][-1] for s in subjects], decimals=4)],
    )


class _Watched:
    """The models as they are gone through, each counted."""

    def __init__(self, models: LocalModels, step: Callable[[], None]) -> None:
        self._models, self._step = models, step

    def __iter__(self) -> Iterator[StagedModel]:
        for model in self._models:
            yield model
            self._step()

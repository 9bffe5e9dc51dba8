"""Methods composed by name: what goes together, what is refused, and whose an option is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from fedacg import methods
from fedacg.config import methods as catalogue
from fedacg.config.methods import GROUPS, Modifier, positive, rate
from fedacg.errors import InputError
from fedacg.methods import METHODS, MODIFIERS, Entry, Method
from fedacg.methods.averaging import MovingAverage, WeightAverage
from fedacg.methods.compress import Sign, TopK
from fedacg.methods.fedinit import RelaxedStart
from fedacg.methods.parts import LocalStep, Proximal
from fedacg.methods.quantise import Quantise
from fedacg.methods.rules import Around, Average, Lookahead, ServerRule
from fedacg.methods.sam import AdaptiveAscent, Ascent
from fedacg.methods.upload import ErrorFeedback
from support.command import Command

GUARDS = {"dp", "dpftrl", "local-dp", "secure", "median", "trim", "krum", "bound"}
"""Parts that decide what a server may see; what they refuse is in test_privacy.py and test_robust.py."""
FREE = [part for part in MODIFIERS if part not in GUARDS]
MODIFIED = ["+".join((base, *parts)) for base in METHODS for n in (1, 2) for parts in permutations(FREE, n)]
PARTS = {"prox": Proximal, "ri": RelaxedStart}
LINKS = {"paq": Quantise, "sign": Sign, "topk": TopK}
STEPS = {"sam": Ascent, "asam": AdaptiveAscent}


def refusals(base: Method, parts: Sequence[str]) -> Iterator[str]:
    """Why these parts do not go with a method, in the words of the part that refuses."""
    rule = base.rule
    while isinstance(rule, Around):
        rule = rule.inner
    if "acg" in parts and type(rule) is not Average:
        yield r"\+acg cannot be added: it has a server rule already"
    if "prox" in parts and any(part.pulls for part in base.corrections):
        yield r"\+prox cannot be added: it pulls towards φ already"
    steps = [part for part in parts if part in STEPS]
    if steps and (type(base.step) is not LocalStep or len(steps) > 1):
        yield r"\+a?sam cannot be added: it has a local step already"
    links = [link for link in base.upload if link.last] + [p for p in parts if p in ("paq", "sign")]
    after = [part for part in parts if part in LINKS]
    if links and after and (len(links) > 1 or links[0] != after[-1]):
        yield "cannot be added: no link can follow (Quantise|Sign), which writes the bytes to send"


OWN_REASONS = {
    ("stem", "acg"): "a lookahead would move φ away",
    ("fedglomo", "acg"): "u is its momentum already",
    ("fedglomo", "prox"): r"\+prox cannot be added: .",
    ("fedglomo", "ri"): r"\+ri cannot be added: .",
    ("fedinit", "ri"): "it sets the starting point itself",
    ("fedpd", "ri"): "it sets the starting point itself",
}
"""What single methods refuse for a reason of their own."""


@pytest.mark.parametrize("base", METHODS)
def test_a_combination_is_built_or_refused_with_a_reason(base: str) -> None:
    plain = methods.build(base)
    for name in (name for name in MODIFIED if name.startswith(f"{base}+")):
        parts = name.split("+")[1:]
        reasons = [
            *refusals(plain, parts),
            *(OWN_REASONS[base, part] for part in parts if (base, part) in OWN_REASONS),
        ]
        if reasons:
            with pytest.raises(InputError, match="|".join(reasons)):
                methods.build(name)
            continue
        method = methods.build(name)
        rules = [type(rule) for rule in nested(method.rule)]
        assert (Lookahead in rules) == ("acg" in parts or Lookahead in [type(r) for r in nested(plain.rule)]), name
        assert (WeightAverage in rules) == ("swa" in parts), name
        assert (MovingAverage in rules) == ("ema" in parts or MovingAverage in map(type, nested(plain.rule))), name
        added = [type(part) for part in method.objective[len(plain.objective) :]]
        assert added == [PARTS[part] for part in parts if part in PARTS], name
        links = [type(link) for link in method.upload[len(plain.upload) :] if not isinstance(link, ErrorFeedback)]
        assert links == [LINKS[part] for part in parts if part in LINKS], name
        assert sum(isinstance(link, ErrorFeedback) for link in method.upload) <= 1, name
        steps = [STEPS[part] for part in parts if part in STEPS]
        assert type(method.step) is (steps[0] if steps else type(plain.step)), name


def nested(rule: ServerRule) -> list[ServerRule]:
    """A rule and those that it is around."""
    return [rule, *nested(rule.inner)] if isinstance(rule, Around) else [rule]


@pytest.mark.parametrize(
    "base", ["scaffold", "fednova", "fedcm", "mime", "feddane", "fedgate", "ghbm", "fedmoswa"]
)
def test_acg_reaches_through_what_is_around_the_average(base: str) -> None:
    method = methods.build(f"{base}+acg", {"lam": 0.7, "server_lr": 0.5})
    *outer, inner = nested(method.rule)
    assert [type(rule) for rule in outer] == [type(methods.build(base).rule)]
    assert isinstance(inner, Lookahead)
    assert (inner.beta, inner.server_lr) == (0.7, 0.5)


def test_the_order_of_parts_does_not_matter() -> None:
    one, other = (methods.build(name, {"lam": 0.7, "mu": 0.2}) for name in ("fedavg+acg+prox", "fedavg+prox+acg"))
    for method in (one, other):
        assert isinstance(method.rule, Lookahead)
        assert method.rule.beta == 0.7
        assert [part.mu for part in method.corrections if isinstance(part, Proximal)] == [0.2]


def test_a_part_keeps_what_the_base_was_told() -> None:
    method = methods.build("fedprox+acg", {"mu": 0.3, "lam": 0.6, "server_lr": 0.5})
    assert isinstance(method.rule, Lookahead)
    assert (method.rule.beta, method.rule.server_lr) == (0.6, 0.5)
    assert [part.mu for part in method.corrections if isinstance(part, Proximal)] == [0.3]


@pytest.mark.parametrize("base", METHODS)
def test_every_option_of_every_part_can_be_set(base: str) -> None:
    for name in (name for name in MODIFIED if name.startswith(f"{base}+")):
        every_option_can_be_set(name)


def every_option_can_be_set(name: str) -> None:
    recipe = methods.parse(name)
    owned = [(owner.name, option) for owner in recipe.owners for option in owner.options]
    spelled = [(owner.name, option) for owner, option in recipe.option_names().values()]
    assert spelled == owned, "none hides another"
    for option in recipe.base.options:
        assert recipe.option_names()[option] == (recipe.base, option), "the base keeps its own names"


def test_moon_and_the_proximal_pull_have_a_mu_each() -> None:
    method = methods.build("moon+prox", {"mu": 5, "prox_mu": 0.2})
    assert [part.mu for part in method.corrections if isinstance(part, Proximal)] == [0.2]
    assert methods.complete("moon+prox", {})["mu"] == METHODS["moon"].options["mu"].default


def test_an_option_that_two_owners_share_is_spelled_with_the_parts_name_in_front(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, float] = {}

    def build(mu: float, lam: float) -> Method:
        seen.update(mu=mu, lam=lam)
        return Method(Average(1.0))

    fake = Entry("fake", "Fake", "", "", {"mu": positive(1.0), "lam": rate(5.0)}, build)
    monkeypatch.setattr(catalogue, "METHODS", {"fake": fake})
    assert methods.complete("fake+prox+acg", {}) == {"mu": 1.0, "lam": 5.0, "prox_mu": 0.001, "acg_lam": 0.85}
    method = methods.build("fake+prox+acg", {"mu": 3, "prox_mu": 0.2, "lam": 7, "acg_lam": 0.5})
    assert seen == {"mu": 3.0, "lam": 7.0}
    assert isinstance(method.rule, Lookahead)
    assert method.rule.beta == 0.5
    assert [part.mu for part in method.corrections if isinstance(part, Proximal)] == [0.2]
    with pytest.raises(InputError, match=r"method.acg_lam = 7: must lie in \[0, 1\)"):
        methods.complete("fake+acg", {"acg_lam": 7})
    with pytest.raises(InputError, match=r"method.mu = 0: must lie in \(0, ∞\)"):
        methods.complete("fake+prox", {"mu": 0, "prox_mu": 0})


def test_a_later_part_gives_way_to_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(method: Method, mu: float) -> Method:
        return replace(method, rule=Average(mu))

    second = Modifier("second", "", "", {"mu": rate(9.0)}, apply)
    monkeypatch.setattr(catalogue, "MODIFIERS", {**MODIFIERS, "second": second})
    assert methods.complete("fedavg+prox+second", {}) == {"server_lr": 1.0, "mu": 0.001, "second_mu": 9.0}
    assert methods.build("fedavg+prox+second", {"mu": 1, "second_mu": 4}).rule.server_lr == 4  # type: ignore[attr-defined]
    assert methods.complete("fedavg+second+prox", {}) == {"server_lr": 1.0, "mu": 9.0, "prox_mu": 0.001}
    assert methods.build("fedavg+second+prox", {"mu": 1, "prox_mu": 4}).rule.server_lr == 1  # type: ignore[attr-defined]


def test_the_list_of_methods_fits_a_screen_by_what_they_change(fedacg: Command) -> None:
    lines = fedacg("methods").out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    under: dict[str, list[str]] = {}
    for line in lines:
        if line and not line.startswith(" "):
            group = line
        under.setdefault(group, []).extend(line.split() if line.startswith(" ") else [])
    for group, entries in GROUPS.items():
        assert under[group] == [entry.name for entry in entries]
    assert under["Parts to add, as in fedprox+acg"] == [f"+{part}" for part in MODIFIERS]


def test_every_method_and_part_is_listed_on_a_line_of_its_own(fedacg: Command) -> None:
    lines = fedacg("methods", "--equations").out.splitlines()
    names = [line.split()[0] for line in lines if line.strip()]
    for name in (*METHODS, *(f"+{part}" for part in MODIFIERS)):
        assert names.count(name) == 1, name
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", [*METHODS, *(f"+{part}" for part in MODIFIERS)])
def test_one_can_be_shown_in_full(fedacg: Command, name: str) -> None:
    outcome = fedacg("methods", name)
    assert outcome.code == 0, outcome
    owner = MODIFIERS[name[1:]] if name.startswith("+") else METHODS[name]
    assert owner.link in outcome.out
    assert owner.reference in outcome.out
    for option, spec in owner.options.items():
        tuned = ", tuned over " + ", ".join(f"{value:g}" for value in spec.search) if spec.search else ""
        assert f"{option} = {spec.default:g}, in {spec}{tuned}\n" in outcome.out, option


def test_a_count_is_a_whole_number() -> None:
    assert methods.complete("ghbm", {"tau": 3})["tau"] == 3
    for wrong in (0, 2.5, float("inf")):
        with pytest.raises(InputError, match=r"method.tau = .*: must lie in whole numbers of \[1, ∞\)"):
            methods.complete("ghbm", {"tau": wrong})

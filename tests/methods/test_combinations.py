"""Methods composed by name: what goes together, what is refused, and whose an option is."""

from dataclasses import replace
from itertools import permutations

import pytest
from fedacg.methods.objective import Proximal

from fedacg import methods
from fedacg.config import methods as catalogue
from fedacg.config.methods import Modifier, positive, rate
from fedacg.errors import InputError
from fedacg.methods import METHODS, MODIFIERS, Entry, Method
from fedacg.methods.parts import Proximal
from fedacg.methods.quantise import Quantise
from fedacg.methods.rules import Average, Lookahead
from support.command import Command

MODIFIED = [
    "+".join((base, *parts))
    for base in METHODS
    for count in range(1, len(MODIFIERS) + 1)
    for parts in permutations(MODIFIERS, count)
]


@pytest.mark.parametrize("name", MODIFIED)
def test_a_combination_is_built_or_refused_with_a_reason(name: str) -> None:
    base, *parts = name.split("+")
    plain = methods.build(base)
    reasons = []
    if "acg" in parts and not isinstance(plain.rule, Average):
        reasons.append(r"\+acg does not go with it: it has a server rule of its own")
    if "prox" in parts and any(part.pulls for part in plain.corrections):
        reasons.append(r"\+prox does not go with it: it pulls towards φ already")
    if reasons:
        with pytest.raises(InputError, match="|".join(reasons)):
            methods.build(name)
        return
    method = methods.build(name)
    assert type(method.rule) is (Lookahead if "acg" in parts else type(plain.rule))
    assert [type(link) for link in method.upload] == ([Quantise] if "paq" in parts else [])
    added = method.corrections[len(plain.corrections) :]
    assert [type(part) for part in added] == ([Proximal] if "prox" in parts else [])
    assert [type(part) for part in method.losses] == [type(part) for part in plain.losses]
    assert type(method.step) is type(plain.step)


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


@pytest.mark.parametrize("name", MODIFIED)
def test_every_option_of_every_part_can_be_set(name: str) -> None:
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


def test_every_method_and_part_is_listed_on_a_line_of_its_own(fedacg: Command) -> None:
    names = [line.split()[0] for line in fedacg("methods").out.splitlines() if line.strip()]
    for name in (*METHODS, *(f"+{part}" for part in MODIFIERS)):
        assert names.count(name) == 1, name


@pytest.mark.parametrize("name", [*METHODS, *(f"+{part}" for part in MODIFIERS)])
def test_one_can_be_shown_in_full(fedacg: Command, name: str) -> None:
    outcome = fedacg("methods", name)
    assert outcome.code == 0, outcome
    owner = MODIFIERS[name[1:]] if name.startswith("+") else METHODS[name]
    assert owner.link in outcome.out
    assert owner.reference in outcome.out
    for option, spec in owner.options.items():
        assert f"{option} = {spec.default:g}, in {spec}\n" in outcome.out, option

"""Parts that are added to a method by its name, as in `fedprox+acg`."""

from fedacg.config.catalogue.entry import Modifier, Option, fraction, rate

MODIFIERS: tuple[Modifier, ...] = (
    Modifier(
        name="acg",
        title="lookahead server momentum",
        reference="Kim, Kim, Han, CVPR 2024",
        link="https://arxiv.org/abs/2201.03172",
        equation="φ = θ + λm; m ← λm + Δ; θ ← θ + m in place of averaging",
        options={"lam": fraction(0.85)},
        apply="fedacg.methods.fedacg:swap_in_lookahead",
    ),
    Modifier(
        name="prox",
        title="proximal pull",
        reference="Li et al., MLSys 2020",
        link="https://arxiv.org/abs/1812.06127",
        equation="adds μ/2 ‖w − φ‖² to the objective",
        options={"mu": rate(0.001)},
        apply="fedacg.methods.fedprox:add_proximal",
    ),
    Modifier(
        name="paq",
        title="quantised upload",
        reference="Reisizadeh et al., AISTATS 2020",
        link="https://arxiv.org/abs/1909.13014",
        equation="uploads Q(Δ_i), unbiased, at so many bits an entry",
        options={"bits": Option(4, low=1, high=8, high_open=False, only=(1, 2, 4, 8))},
        apply="fedacg.methods.fedpaq:quantise_upload",
    ),
)

"""Methods that change where a local step goes: momentum sent to clients, perturbed gradients."""

from fedacg.config.catalogue.entry import Entry, Option, fraction, positive, rate

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="fedcm",
        title="FedCM",
        reference="Xu et al., 2021",
        link="https://arxiv.org/abs/2106.10874",
        equation="w ← w − η(αg + (1−α)D); D ← −Δ/(ηK); θ ← θ + Δ",
        options={"alpha": Option(0.1, low=0, high=1, low_open=True, high_open=False), "server_lr": positive(1.0)},
        build="fedacg.methods.fedcm:fedcm",
    ),
    Entry(
        name="fedpa",
        title="FedPA",
        reference="Al-Shedivat et al., ICLR 2021",
        link="https://arxiv.org/abs/2010.05273",
        equation="Δ_i = Σ̂⁻¹(x̄ − θ) of n samples of the local steps; θ ← θ + Δ",
        options={
            "rho": rate(0.01),
            "samples": Option(5, low=1, whole=True),
            "burn_in": fraction(0.5),
            "warmup": Option(10, low=0, whole=True),
            "server_lr": positive(1.0),
        },
        build="fedacg.methods.fedpa:fedpa",
    ),
    Entry(
        name="stem",
        title="STEM",
        reference="Khanduri et al., NeurIPS 2021",
        link="https://arxiv.org/abs/2106.10435",
        equation="d ← g(w_k) + (1−a)(d − g(w_{k−1})); w ← w − ηd; θ, d ← means",
        options={"a": Option(0.1, low=0, high=1, low_open=True, high_open=False)},
        build="fedacg.methods.stem:stem",
    ),
    Entry(
        name="fedglomo",
        title="FedGLOMO",
        reference="Das et al., UAI 2022",
        link="https://arxiv.org/abs/2012.04061",
        equation="STORM from θ_t, θ_{t−1}: A, A'; u ← βA + (1−β)(u + A − A'); θ −= u",
        options={
            "a": Option(0.2, low=0, high=1, low_open=True, high_open=False),
            "beta": Option(0.2, low=0, high=1, low_open=True, high_open=False),
            "server_lr": positive(1.0),
        },
        build="fedacg.methods.fedglomo:fedglomo",
    ),
    Entry(
        name="fedsol",
        title="FedSOL",
        reference="Lee et al., CVPR 2024",
        link="https://arxiv.org/abs/2308.12532",
        equation="w ← w − η g(w + ε), ε = ρ |w − φ| ⊙ ∇KL(φ ‖ w)/‖·‖; θ ← θ + Δ",
        options={"rho": rate(1.0), "server_lr": positive(1.0)},
        build="fedacg.methods.fedsol:fedsol",
    ),
)

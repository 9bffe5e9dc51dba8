"""Methods that change what clients minimise: terms added to their loss, or another loss."""

from fedacg.config.catalogue.entry import Entry, Option, positive, rate

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="fedprox",
        title="FedProx",
        reference="Li et al., MLSys 2020",
        link="https://arxiv.org/abs/1812.06127",
        equation="ℓ + μ/2 ‖w − φ‖²; θ ← θ + Δ",
        options={"mu": rate(0.001), "server_lr": positive(1.0)},
        build="fedacg.methods.fedprox:fedprox",
    ),
    Entry(
        name="moon",
        title="MOON",
        reference="Li, He, Song, CVPR 2021",
        link="https://arxiv.org/abs/2103.16257",
        equation="ℓ + μ log(1 + e^{(s(z,z_p) − s(z,z_g))/T}); θ ← θ + Δ",
        options={"mu": rate(1.0), "temperature": positive(0.5), "server_lr": positive(1.0)},
        build="fedacg.methods.moon:moon",
    ),
    Entry(
        name="fedmlb",
        title="FedMLB",
        reference="Kim, Kim, Han, ICML 2022",
        link="https://arxiv.org/abs/2207.06936",
        equation="CE(z) + λ₁ mean_l CE(z_l) + λ₂ mean_l KL(z_l ‖ z); θ ← θ + Δ",
        options={
            "lam1": rate(1.0),
            "lam2": rate(1.0),
            "temperature": positive(1.0),
            "server_lr": positive(1.0),
        },
        build="fedacg.methods.fedmlb:fedmlb",
    ),
    Entry(
        name="fedlc",
        title="FedLC",
        reference="Zhang et al., ICML 2022",
        link="https://arxiv.org/abs/2209.00189",
        equation="CE on z_c − τ n_{i,c}^{−1/4}; θ ← θ + Δ",
        options={"tau": rate(1.0), "server_lr": positive(1.0)},
        build="fedacg.methods.fedlc:fedlc",
    ),
    Entry(
        name="fedntd",
        title="FedNTD",
        reference="Lee et al., NeurIPS 2022",
        link="https://arxiv.org/abs/2106.03097",
        equation="(1−β) CE + β KL(z_g ‖ z) over classes ≠ y; θ ← θ + Δ",
        options={
            "beta": Option(0.3, low=0, high=1, high_open=False),
            "temperature": positive(1.0),
            "server_lr": positive(1.0),
        },
        build="fedacg.methods.fedntd:fedntd",
    ),
    Entry(
        name="feddecorr",
        title="FedDecorr",
        reference="Shi et al., ICLR 2023",
        link="https://arxiv.org/abs/2210.00226",
        equation="CE + β/B · mean off-diagonal (XᵀX)²; θ ← θ + Δ",
        options={"beta": rate(0.01), "server_lr": positive(1.0)},
        build="fedacg.methods.feddecorr:feddecorr",
    ),
)

"""Methods that change how the server moves; clients minimise their own loss with plain steps."""

from fedacg.config.catalogue.entry import Entry, fraction, positive, rate

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="fedavg",
        title="FedAvg",
        reference="McMahan et al., AISTATS 2017",
        link="https://arxiv.org/abs/1602.05629",
        equation="θ ← θ + Δ",
        options={"server_lr": positive(1.0)},
        build="fedacg.methods.fedavg:fedavg",
    ),
    Entry(
        name="fedavgm",
        title="FedAvgM",
        reference="Hsu, Qi, Brown, 2019",
        link="https://arxiv.org/abs/1909.06335",
        equation="m ← βm + Δ; θ ← θ + m",
        options={"beta": fraction(0.4), "server_lr": positive(1.0)},
        build="fedacg.methods.fedavgm:fedavgm",
    ),
    Entry(
        name="fedacg",
        title="FedACG",
        reference="Kim, Kim, Han, CVPR 2024",
        link="https://arxiv.org/abs/2201.03172",
        equation="φ = θ + λm; ℓ + β/2 ‖w − φ‖²; m ← λm + Δ; θ ← θ + m",
        options={"lam": fraction(0.85), "beta": rate(0.01), "server_lr": positive(1.0)},
        build="fedacg.methods.fedacg:fedacg",
    ),
    Entry(
        name="fedadam",
        title="FedAdam",
        reference="Reddi et al., ICLR 2021",
        link="https://arxiv.org/abs/2003.00295",
        equation="m, v ← moments of Δ; θ ← θ + η_g m/(√v + τ)",
        options={
            "beta1": fraction(0.9),
            "beta2": fraction(0.99),
            "tau": positive(0.001),
            "server_lr": positive(0.01),
        },
        build="fedacg.methods.fedadam:fedadam",
    ),
)

"""Methods that correct every client's drift by control variates or duals, which clients keep or send."""

from fedacg.config.catalogue.entry import Entry, Option, fraction, positive, rate

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="feddyn",
        title="FedDyn",
        reference="Acar et al., ICLR 2021",
        link="https://arxiv.org/abs/2111.04263",
        equation="ℓ − ⟨g_i, w⟩ + α/2 ‖w − φ‖²; h ← h − α/N ΣΔ_i; θ ← mean(w_i) − h/α",
        options={"alpha": positive(0.1)},
        build="fedacg.methods.feddyn:feddyn",
    ),
    Entry(
        name="feddc",
        title="FedDC",
        reference="Gao et al., CVPR 2022",
        link="https://arxiv.org/abs/2203.11751",
        equation="ℓ + α/2 ‖w − (φ − h_i)‖² + ⟨w, g − g_i⟩; θ ← mean(w_i) + h",
        options={"alpha": rate(0.01)},
        build="fedacg.methods.feddc:feddc",
    ),
    Entry(
        name="fedpd",
        title="FedPD",
        reference="Zhang et al., IEEE TSP 2021",
        link="https://arxiv.org/abs/2005.11418",
        equation="FedDyn from its own w_i: λ_i += μ(w_i − θ); θ ← mean(w_i + λ_i/μ)",
        options={"mu": positive(0.1), "own_start": Option(1, low=0, high=1, only=(0, 1))},
        build="fedacg.methods.fedpd:fedpd",
    ),
    Entry(
        name="fedsmoo",
        title="FedSMOO",
        reference="Sun et al., ICML 2023",
        link="https://arxiv.org/abs/2305.11584",
        equation="FedDyn, g(w + ε), ε along g − μ_i − s; μ_i += ε − s; s ∝ mean(μ_i)",
        options={"alpha": positive(0.1), "rho": rate(0.1)},
        build="fedacg.methods.fedsmoo:fedsmoo",
    ),
    Entry(
        name="fedgmt",
        title="FedGMT",
        reference="Li et al., ICML 2025",
        link="https://openreview.net/forum?id=80mK2Mqaph",
        equation="FedDyn on ℓ + γ KL(z_e ‖ z) at temperature T; e ← δe + (1−δ)θ",
        options={
            "alpha": positive(0.1),
            "gamma": rate(1.0),
            "temperature": positive(3.0),
            "decay": fraction(0.95),
        },
        build="fedacg.methods.fedgmt:fedgmt",
    ),
)

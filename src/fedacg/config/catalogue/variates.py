"""Methods that correct every client's drift by control variates or duals, which clients keep or send."""

from fedacg.config.catalogue.entry import Entry, positive, rate

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
)

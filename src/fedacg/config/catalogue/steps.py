"""Methods that change where a local step goes: momentum sent to clients, perturbed gradients."""

from fedacg.config.catalogue.entry import Entry, Option, positive

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
)

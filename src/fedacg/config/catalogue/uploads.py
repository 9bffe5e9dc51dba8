"""Methods that change what is uploaded and how it is encoded."""

from fedacg.config.catalogue.entry import Entry, Option, fraction, positive

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="fedcams",
        title="FedCAMS",
        reference="Wang, Lin, Chen, ICML 2022",
        link="https://arxiv.org/abs/2205.02719",
        equation="fedams+sign: uploads (‖x‖₁/d) sign(x), x = Δ_i + e_i; keeps the error e_i",
        options={
            "beta1": fraction(0.9),
            "beta2": fraction(0.99),
            "epsilon": positive(0.001),
            "server_lr": positive(1.0),
        },
        build="fedacg.methods.fedams:fedcams",
    ),
    Entry(
        name="fedcomgate",
        title="FedCOMGATE",
        reference="Haddadpour et al., AISTATS 2021",
        link="https://arxiv.org/abs/2007.01154",
        equation="fedgate+paq: w ← w − η(g − δ_i); uploads Q(Δ_i)",
        options={"bits": Option(8, low=1, high=8, high_open=False, only=(1, 2, 4, 8)), "server_lr": positive(1.0)},
        build="fedacg.methods.fedgate:fedcomgate",
    ),
)

"""Baselines for federated methods; they are run like methods and take no parts."""

from fedacg.config.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="centralised",
        title="Centralised",
        reference="",
        equation="w ← as many steps as a cohort takes, on the examples of all; θ ← w",
        options={},
        build="fedacg.methods.baselines:centralised",
    ),
    Entry(
        name="local-only",
        title="Local only",
        reference="",
        equation="w_i ← K steps from the client's own last w_i; nothing is sent",
        options={},
        build="fedacg.methods.baselines:local_only",
    ),
)

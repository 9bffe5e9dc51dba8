"""The catalogue of methods and parts, without torch: a file for each group, by what its methods change."""

from dataclasses import replace

from fedacg.config.catalogue import baselines, objectives, parts, servers, steps, uploads, variates
from fedacg.config.catalogue.entry import Entry, Modifier

GROUPS: dict[str, tuple[Entry, ...]] = {
    "The server's step": servers.ENTRIES,
    "What clients minimise": objectives.ENTRIES,
    "The local step": steps.ENTRIES,
    "Control variates and duals": variates.ENTRIES,
    "The upload": uploads.ENTRIES,
}
"""The methods, grouped by what they change."""
METHODS: dict[str, Entry] = {
    entry.name: replace(entry, group=group) for group, entries in GROUPS.items() for entry in entries
}
BASELINES: dict[str, Entry] = {entry.name: replace(entry, group="Baselines") for entry in baselines.ENTRIES}
"""Baselines: run like methods, but not federated methods themselves."""
MODIFIERS: dict[str, Modifier] = {modifier.name: modifier for modifier in parts.MODIFIERS}

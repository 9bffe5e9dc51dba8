"""Methods that change what is uploaded and how it is written."""

from fedacg.config.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = ()

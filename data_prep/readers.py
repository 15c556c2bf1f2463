"""All data sets by name."""

from __future__ import annotations

from data_prep.argoverse1 import Argoverse1
from data_prep.argoverse2 import Argoverse2
from data_prep.reader import Reader

READERS: dict[str, type[Reader]] = {reader.name: reader for reader in (Argoverse1, Argoverse2)}

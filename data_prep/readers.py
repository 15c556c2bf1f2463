"""All data sets by name."""

from __future__ import annotations

from data_prep.argoverse1 import Argoverse1
from data_prep.argoverse2 import Argoverse2
from data_prep.argoverse2_sensor import Argoverse2Sensor
from data_prep.eth_ucy import EthUcy
from data_prep.reader import Reader
from data_prep.table import Table

READERS: dict[str, type[Reader]] = {reader.name: reader for reader in (Argoverse1, Argoverse2, Argoverse2Sensor, EthUcy, Table)}

"""The list of data sets: a new reader needs its file and one line here."""

from data_prep.reader import Reader
from data_prep.readers.argoverse1 import Argoverse1
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.readers.argoverse2.sensor import Argoverse2Sensor
from data_prep.readers.commonroad import CommonRoad
from data_prep.readers.eth_ucy import EthUcy
from data_prep.readers.ind.reader import Ind
from data_prep.readers.interaction.reader import Interaction
from data_prep.readers.nuplan.reader import Nuplan
from data_prep.readers.nuscenes.reader import NuscenesPrediction
from data_prep.readers.scenarionet.reader import ScenarioNet
from data_prep.readers.sdd import Sdd
from data_prep.readers.sumo import Sumo
from data_prep.readers.table.reader import Table
from data_prep.readers.trajnetpp import Trajnetpp
from data_prep.readers.vci import Vci
from data_prep.readers.waymo.reader import Waymo
from trajformer.config import load_plugins

_READERS = (
    Argoverse1,
    Argoverse2,
    Argoverse2Sensor,
    CommonRoad,
    EthUcy,
    Ind,
    Interaction,
    Nuplan,
    NuscenesPrediction,
    ScenarioNet,
    Sdd,
    Sumo,
    Table,
    Trajnetpp,
    Vci,
    Waymo,
)
READERS: dict[str, type[Reader]] = {reader.name: reader for reader in _READERS}
READERS |= load_plugins("trajformer.readers")

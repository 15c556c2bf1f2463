"""Published tables that `preprocess table --preset NAME` reads without further options."""

from typing import NamedTuple

from data_prep.readers.table.conventions import Conventions


class Preset(NamedTuple):
    """The options that a published table needs in place of the defaults."""

    conventions: Conventions = Conventions()
    time_unit: str = "s"


PRESETS = {
    "none": Preset(),
    # NGSIM vehicle trajectories, also the file of all four sites. Local_X is the distance from the
    # left edge and Local_Y the distance along the road, both of the middle of the front bumper.
    # Frame numbers begin again in each recording, so the time is Global_Time.
    "ngsim": Preset(
        Conventions(
            unit="ft",
            columns={
                "track_id": "Vehicle_ID",
                "timestamp": "Global_Time",
                "x": "Local_X",
                "y": "Local_Y",
                "length": "v_Length",
                "width": "v_Width",
                "kind": "v_Class",
                "scene_id": "Location",
            },
            optional=("scene_id",),
            kinds={"1": "motorcyclist", "2": "vehicle", "3": "vehicle"},
        ),
        time_unit="ms",
    ),
}

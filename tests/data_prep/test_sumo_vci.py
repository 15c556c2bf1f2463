"""SUMO fcd-output, and the recordings VCI DUT and CITR."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from support import drone_files

from data_prep.readers.sumo import Sumo
from data_prep.readers.vci import Vci
from trajformer.errors import SceneError
from trajformer.scenes.scene import AgentKind

KINDS = [AgentKind.VEHICLE, AgentKind.PEDESTRIAN]


def test_angles_of_sumo_are_compass_degrees(tmp_path: Path) -> None:
    drone_files.write_sumo(tmp_path / "val" / "fcd.xml")
    reader = Sumo(**drone_files.SMALL, stride=100)
    [item] = reader.inputs(tmp_path, "val")
    scene = reader.read(item, "val", tmp_path)
    assert scene.agent_kind.tolist() == KINDS
    np.testing.assert_allclose(scene.heading[:, 4], [0, np.pi / 2], atol=1e-6)
    np.testing.assert_allclose(scene.velocity[:, 4], [[5, 0], [0, 1]], atol=1e-6)


def test_other_time_steps_of_sumo_are_interpolated(tmp_path: Path) -> None:
    drone_files.write_sumo(tmp_path / "val" / "fcd.xml", period_s=0.25)
    reader = Sumo(num_history=10, num_future=10, stride=100)
    [item] = reader.inputs(tmp_path, "val")
    scene = reader.read(item, "val", tmp_path)
    step = np.diff(scene.position[0, :, 0])
    np.testing.assert_allclose(step[:9], 0.5, atol=1e-4)


def test_entities_of_sumo_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "val" / "fcd.xml"
    drone_files.write_sumo(path)
    path.write_text('<!DOCTYPE x [<!ENTITY a "b">]>' + path.read_text())
    reader = Sumo(**drone_files.SMALL)
    [item] = reader.inputs(tmp_path, "val")
    with pytest.raises(SceneError, match=r"fcd\.xml: not an fcd-output of SUMO: a document type"):
        reader.read(item, "val", tmp_path)


def test_clips_join_pedestrians_and_vehicles(tmp_path: Path) -> None:
    drone_files.write_vci(tmp_path / "dut", frame_rate=24.0)
    reader = Vci(frame_rate=24.0, num_history=4, num_future=5, stride=100)
    [item] = reader.inputs(tmp_path, "dut")
    scene = reader.read(item, "dut", tmp_path)
    assert scene.agent_id == ("ped_0", "veh_0")
    assert scene.agent_kind.tolist() == KINDS[::-1]
    np.testing.assert_allclose(scene.velocity[:, 3], [[0, 1], [5, 0]], atol=1e-5)
    np.testing.assert_allclose(np.diff(scene.position[1, :, 0]), 0.5, atol=1e-5)


def test_a_real_clip(real_data: Path, tmp_path: Path) -> None:
    with tarfile.open(real_data / "drone" / "dut.tar.xz") as archive:
        for member in archive:
            if "intersection_01" in member.name:
                archive.extract(member, tmp_path, filter="data")
    reader = Vci()
    items = reader.inputs(tmp_path, "dut")
    scene = reader.read(items[0], "dut", tmp_path)
    assert len(items) == 3
    assert {AgentKind.PEDESTRIAN} <= set(scene.agent_kind.tolist())

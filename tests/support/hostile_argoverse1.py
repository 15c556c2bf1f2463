"""Broken Argoverse 1 sequences and maps: what is done to real ones, and why they must be refused."""

from __future__ import annotations

import gzip
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.hostile import SPECIAL, Cases, Damage, cut, data, replaced, text, then, zeroed

Rows = list[list[str]]
HEADER = "TIMESTAMP,TRACK_ID,OBJECT_TYPE,X,Y,CITY_NAME"
NAMES = HEADER.split(",")
AGENT = "00000000-0000-0000-0000-000000000000"
MAP = "pruned_argoverse_{}_1_vector_map.xml"


def rows(change: Callable[[Rows], Rows]) -> Damage:
    """Other rows."""

    def damage(whole: bytes) -> bytes:
        header, *lines = whole.decode().splitlines()
        return "\n".join([header, *map(",".join, change([line.split(",") for line in lines]))]).encode()

    return data(damage)


def cell(name: str, value: str, every: bool = False) -> Damage:
    """One value of a column, or all of them, are another."""
    index = NAMES.index(name)
    return rows(
        lambda lines: [[*row[:index], value, *row[index + 1 :]] if every or n == 4 else row for n, row in enumerate(lines)]
    )


def others(count: int, steps: int) -> Damage:
    """More tracks, beside the AGENT, of some steps each."""

    def change(lines: Rows) -> Rows:
        agent = [row for row in lines if row[2] == "AGENT"][:steps]
        return lines + [[row[0], f"t{i}", "OTHERS", *row[3:]] for i in range(count) for row in agent]

    return rows(change)


def without(name: str) -> Damage:
    """A column less."""
    index = NAMES.index(name)
    return data(lambda whole: b"\n".join(b",".join(np.delete(row.split(b","), index).tolist()) for row in whole.splitlines()))


def near(path: Path, around: np.ndarray, radius_m: float = 60.0) -> str:
    """The part of a map whose lanes come near a position [2]."""
    root = ElementTree.parse(path).getroot()
    place = {node.get("id"): (float(node.get("x", 0)), float(node.get("y", 0))) for node in root.iter("node")}
    ways, used = [], set()
    for way in root.iter("way"):
        refs = [nd.get("ref") for nd in way.iter("nd")]
        if np.hypot(*(np.array([place[ref] for ref in refs]) - around).T).min() < radius_m:
            ways.append(way)
            used |= set(refs)
    parts = [*(node for node in root.iter("node") if node.get("id") in used), *ways]
    return (
        "<ArgoverseVectorMap>\n"
        + "\n".join(ElementTree.tostring(part, "unicode").strip() for part in parts)
        + "\n</ArgoverseVectorMap>\n"
    )


def node(name: str, value: str) -> Damage:
    """Every node has another coordinate."""
    return data(lambda whole: re.sub(rb'(<node [^>]*%s=")[^"]*' % name.encode(), rb"\g<1>" + value.encode(), whole))


def doctype(entities: str, use: str) -> Damage:
    """A document type in front, and an entity in the map."""
    kind = f"<!DOCTYPE ArgoverseVectorMap [{entities}]>"
    return data(lambda whole: kind.encode() + whole.replace(b"<node ", use.encode() + b"<node ", 1))


def laughs(levels: int = 10) -> str:
    """Entities of entities of entities."""
    return '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(levels))


def chain(levels: int = 90_000) -> Damage:
    """Entities one in the other, deeper than the stack of a parser."""
    entities = '<!ENTITY a0 "a">' + "".join(f'<!ENTITY a{n + 1} "&a{n};">' for n in range(levels))
    return doctype(entities, f"&a{levels};")


def disguised(path: Path) -> None:
    """A document type in letters of another code, which the file declares."""
    chain()(path)
    path.write_bytes(b'<?xml version="1.0" encoding="cp037"?>' + path.read_bytes().decode().encode("cp037"))


SEQUENCES: Cases = {
    **{f"csv-{name}": (damage, r"\.csv: \w|\.csv: neither") for name, damage in SPECIAL.items() if name != "missing"},
    "csv-empty": (cut(0.0), "Empty CSV file"),
    "csv-header-only": (rows(lambda lines: []), "Empty CSV|TRACK_ID: no rows"),
    "csv-half": (cut(0.5), r"columns|different timestamps|empty or NaN|TRACK_ID|CITY_NAME"),
    "csv-zeros": (zeroed(3_000, 500), r"\.csv: \w"),
    "csv-gzip": (data(gzip.compress), "TIMESTAMP"),
    "csv-utf16": (data(lambda whole: whole.decode().encode("utf-16")), "TIMESTAMP"),
    "csv-not-utf8": (text(AGENT, "\udcff\udcfe"), "TRACK_ID|column #1"),
    "csv-type-not-utf8": (text("AGENT", "A\udcffT"), "column #2|OBJECT_TYPE"),
    "csv-json": (replaced(json.dumps({"X": [1, 2]})), r"\.csv: \w"),
    "csv-semicolons": (text(",", ";"), "TIMESTAMP"),
    "csv-no-header": (text(HEADER + "\n", ""), "TIMESTAMP"),
    "csv-header-twice": (text(HEADER, f"{HEADER}\n{HEADER}"), "column #0"),
    "csv-open-quote": (text("\n", '\n"', 1), r"columns"),
    "csv-huge": (lambda path: path.open("r+b").truncate(1 << 40), "1099511627776 bytes, expected at most"),
    "csv-long-line": (data(lambda whole: whole + b"1," * 3_000_000), r"\.csv: \w"),
    **{f"csv-no-{name}": (without(name), name) for name in NAMES},
    **{f"csv-two-{name}": (text(HEADER, f"{HEADER.replace('CITY_NAME', name)}", 1), name) for name in NAMES[:5]},
    "csv-two-x": (rows(lambda lines: [[*row, "7.0"] for row in lines]), "columns"),
    "csv-lower-case": (text(HEADER, HEADER.lower(), 1), "TIMESTAMP"),
    **{
        f"csv-{name}-{value or 'empty'}": (cell(name, value), name)
        for name in ("X", "Y")
        for value in ("", "nan", "inf", "-inf", "1e300", "1e400", "-1e9")
    },
    **{f"csv-{name}-text": (cell(name, "north"), "north") for name in ("X", "Y", "TIMESTAMP")},
    "csv-x-far": (cell("X", "90000.0"), "farther than 50 km|faster than"),
    "csv-x-jump": (cell("X", "20000.0"), "faster than 10000 m/s"),
    "csv-time-empty": (cell("TIMESTAMP", ""), "TIMESTAMP: empty or NaN"),
    "csv-time-more": (cell("TIMESTAMP", "1e10"), "TIMESTAMP: 51 different timestamps"),
    "csv-time-infinite": (rows(lambda b: [["inf" if r[0] == b[-1][0] else r[0], *r[1:]] for r in b]), "TIMESTAMP: infinite"),
    "csv-one-time": (cell("TIMESTAMP", "1.0", every=True), "TIMESTAMP: 1 different timestamps"),
    "csv-no-agent": (text("AGENT", "OTHERS"), "OBJECT_TYPE: 0 tracks are AGENT"),
    "csv-all-agents": (text("OTHERS", "AGENT"), r"OBJECT_TYPE: \d+ tracks are AGENT"),
    "csv-agent-late": (
        rows(lambda b: [r for n, r in enumerate(b) if r[2] != "AGENT" or r[0] > b[len(b) // 2][0]]),
        "no observed step|expected",
    ),
    "csv-type-empty": (cell("OBJECT_TYPE", "", every=True), "OBJECT_TYPE"),
    "csv-type-endless": (cell("OBJECT_TYPE", "T" * 9_000, every=True), "OBJECT_TYPE: unknown value 'T{40}'$"),
    "csv-rows-twice": (rows(lambda lines: lines + lines), "TRACK_ID: a track has two rows"),
    "csv-many-rows": (others(1_200, 50), r"TRACK_ID: 6\d+ rows, far too many"),
    "csv-many-tracks": (others(30_000, 1), r"TRACK_ID: 30\d+ tracks, far too many"),
    "csv-id-endless": (text(AGENT, "a" * 1_000), "agent_id: empty, over 200"),
    "csv-id-escape": (text(AGENT, "\x1b[2J"), "agent_id: empty, over 200 characters, or with a newline"),
    "csv-id-nul": (text(AGENT, "a\0b"), "agent_id: empty, over 200 characters, or with a newline"),
    "csv-city-elsewhere": (
        cell("CITY_NAME", "../../etc/passwd", every=True),
        r"CITY_NAME: no map_files/pruned_argoverse_\.\./\.\./etc",
    ),
    "csv-city-endless": (cell("CITY_NAME", "C" * 900, every=True), "CITY_NAME: no map_files/pruned_argoverse_C{40}_"),
    "csv-city-star": (cell("CITY_NAME", "*", every=True), r"CITY_NAME: no map_files/pruned_argoverse_\*_"),
    "csv-city-newline": (cell("CITY_NAME", '"a\nb"', every=True), r"CITY_NAME: no map_files/pruned_argoverse_a\\nb_"),
    "csv-two-cities-newline": (cell("CITY_NAME", '"a\nb"'), r"CITY_NAME: 2 cities in one file: '\w+', 'a\\nb'"),
    "csv-two-cities": (cell("CITY_NAME", "OSL"), "CITY_NAME: 2 cities"),
    "csv-no-city": (cell("CITY_NAME", "", every=True), "CITY_NAME"),
}
MAPS: Cases = {
    **{
        f"xml_{name.replace('-', '_')}": (
            damage,
            r"CITY_NAME|_vector_map\.xml: not a vector map: OSError|not a vector map: FileNotFound",
        )
        for name, damage in SPECIAL.items()
    },
    **{
        f"xml_cut_{part:g}".replace(".", "_"): (cut(part), "xml: not a vector map: ParseError")
        for part in (0.0, 0.001, 0.3, 0.9, 0.999)
    },
    "xml_zeros": (zeroed(500, 50), "not a vector map"),
    "xml_not_utf8": (text("<way", "<way a='\udcff'", 1), "not a vector map: ParseError"),
    "xml_gzip": (data(gzip.compress), "not a vector map"),
    "xml_json": (replaced("{}"), "not a vector map: ParseError"),
    "xml_no_lanes": (replaced("<ArgoverseVectorMap/>"), "way: no lanes"),
    "xml_huge": (lambda path: path.open("r+b").truncate(1 << 40), "1099511627776 bytes, expected at most"),
    "xml_deep": (replaced("<a>" * 300_000 + "</a>" * 300_000), "way: no lanes"),
    "xml_laughs": (doctype(laughs(), "&a10;"), "not a vector map: ValueError: it has a document type"),
    "xml_quadratic": (doctype(f'<!ENTITY a "{"h" * 200_000}">', "&a;" * 9_000), "it has a document type"),
    "xml_chain": (chain(), "it has a document type"),
    "xml_chain_in_disguise": (disguised, "not a vector map: ParseError"),
    "xml_chain_in_utf16": (then(chain(), data(lambda whole: whole.decode().encode("utf-16"))), "it is not UTF-8"),
    "xml_external": (doctype('<!ENTITY a SYSTEM "file:///etc/passwd">', "&a;"), "it has a document type"),
    "xml_external_type": (data(lambda b: b'<!DOCTYPE a SYSTEM "http://localhost:9/a.dtd">' + b), "it has a document type"),
    "xml_undefined": (text("<way", "&a;<way", 1), "not a vector map: ParseError: undefined entity"),
    **{
        f"xml_{n}_{v.strip('-')}": (node(n, v), r"not a vector map|not a point within 1e\+08 m")
        for n in "xy"
        for v in ("nan", "inf", "1e300", "-1e9", "east", "")
    },
    "xml_node_without_x": (data(lambda b: re.sub(rb' x="[^"]*"', b"", b)), "not a vector map: KeyError: 'x'"),
    "xml_node_without_id": (data(lambda b: re.sub(rb'<node id="[^"]*"', b"<node", b)), "not a vector map: KeyError: 'id'"),
    "xml_no_nodes": (data(lambda b: re.sub(rb"<node[^>]*>", b"", b)), "not a vector map: KeyError"),
    "xml_lane_without_id": (data(lambda b: re.sub(rb'lane_id="[^"]*"', b"", b)), "not a vector map: KeyError: 'lane_id'"),
    **{
        f"xml_lane_id_{label}": (data(lambda b, v=value: re.sub(rb'lane_id="[^"]*"', b'lane_id="' + v + b'"', b)), reason)
        for label, value, reason in (
            ("text", b"one", "not a vector map: ValueError"),
            ("large", b"9" * 30, "way: lane_id: not within 64 bits"),
            ("endless", b"9" * 9_000, "not a vector map: ValueError"),
            ("same", b"7", "way: two lanes of one lane_id"),
        )
    },
    "xml_turn": (
        data(lambda b: re.sub(rb'(k="turn_direction" v=")[^"]*', rb"\g<1>UP", b)),
        r"lane \d+: turn_direction: unknown value 'UP'",
    ),
    "xml_successor": (text('k="successor" v="', 'k="successor" v="x'), "not a vector map: ValueError"),
    "xml_no_points": (data(lambda b: re.sub(rb"<nd [^>]*>", b"", b)), r"lane \d+: centreline of 0 different points"),
}

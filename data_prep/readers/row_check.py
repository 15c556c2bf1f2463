"""Rows of a raw file that cannot be used: they are dropped and counted, unless they are many."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.dropped import report_dropped

# A file, recording or case is used if at most this fraction of its rows cannot be used.
MAX_UNUSABLE = 0.1
_MAX_CAUSES = 250  # a cause is one byte for each row


class RowCheck:
    """Collects the unusable rows of a file of R rows, with their causes.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, num_rows: int) -> None:
        """All rows are usable at first."""
        self.path = path
        self._cause = np.zeros(num_rows, np.uint8)  # number of the cause, 0 for usable rows
        self._causes = [""]
        self._problems: list[Callable[[int], str]] = [str]  # describe a row of each cause
        self._lost = Counter[str]()  # rows that the parser left out, by cause
        self._left_out = Counter[str]()  # right rows that are in no scene, by cause

    @property
    def is_usable(self) -> np.ndarray:
        """Rows that were not dropped so far, bool [R]."""
        return self._cause == 0

    def drop(self, is_wrong: np.ndarray, cause: str, problem: Callable[[int], str]) -> None:
        """Drop the rows with `is_wrong`, bool [R].

        `cause` is the same for all files. `problem` describes a row, given its index, with its
        line or value.
        """
        is_new = is_wrong & self.is_usable
        if is_new.any():
            self._cause[is_new] = len(self._causes)
            self._causes.append(cause)
            self._problems.append(problem)

    def lose(self, count: int, cause: str) -> None:
        """Count unusable rows that are not among the R rows."""
        if count:
            self._lost[cause] += count

    def leave_out(self, is_out: np.ndarray, cause: str) -> None:
        """Drop right rows, bool [R], that are in no scene: they do not count as unusable."""
        is_new = is_out & self.is_usable
        if is_new.any():
            self._left_out[cause] += int(is_new.sum())
            self._cause[is_new] = _MAX_CAUSES

    def drop_repeated(
        self, keys: np.ndarray, values: np.ndarray, cause: str, problem: Callable[[int], str]
    ) -> None:
        """Drop rows that have the key of another usable row.

        `keys`, int64 [k, R], are usually track and step. The first of several rows with equal
        `values`, float64 [R, n], is kept. Of rows with different values, none is kept, because the
        right one is not known.
        """
        rows = np.flatnonzero(self.is_usable)
        order = rows[np.lexsort(keys[::-1, rows])]  # stable: rows of a key stay in their order
        is_new = np.ones(len(order), bool)
        is_new[1:] = (np.diff(keys[:, order]) != 0).any(0)
        if is_new.all():
            return
        number = np.cumsum(is_new) - 1  # of the key
        first = order[is_new][number]
        differs = (values[order] != values[first]).any(1)
        is_ambiguous = np.bincount(number, differs) > 0
        is_dropped = np.zeros(len(self._cause), bool)
        is_dropped[order] = ~is_new | is_ambiguous[number]
        self.drop(is_dropped, cause, problem)

    def need(self, is_needed: np.ndarray) -> None:
        """SceneError if one of the rows bool [R] was dropped: the scene is not right without it."""
        missing = np.flatnonzero(is_needed & ~self.is_usable)
        if len(missing):
            row = int(missing[0])
            raise SceneError(f"{self.path}: {self._problems[self._cause[row]](row)}")

    def finish(self) -> np.ndarray:
        """The usable rows, bool [R]; the others are reported as dropped details.

        Raises SceneError: more than `MAX_UNUSABLE` of the rows cannot be used.
        """
        problem = self.problem(np.arange(len(self._cause)), self._lost)
        if problem:
            raise SceneError(f"{self.path}: {problem}")
        self._report()
        return self.is_usable

    def finish_parts(self, part: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
        """The usable rows, bool [R], and the problems of parts of the file, `part` int64 [R].

        A part has a problem if more than `MAX_UNUSABLE` of its rows cannot be used; the other
        parts are not affected. Raises SceneError: as many rows were lost by the parser.
        """
        if self._lost.total() > MAX_UNUSABLE * len(part):
            return self.finish(), {}
        problems: dict[int, str] = {}
        order = np.argsort(part, kind="stable")
        sorted_part = part[order]
        for number in np.unique(part[~self.is_usable]).tolist():
            first, last = np.searchsorted(sorted_part, (number, number + 1))
            problem = self.problem(order[first:last])
            if problem:
                problems[number] = problem
        self._report()
        return self.is_usable, problems

    def problem(self, rows: np.ndarray, lost: Mapping[str, int] | None = None) -> str:
        """Why too many of some rows, int64 [n], cannot be used; "" if few."""
        cause = self._cause[rows]
        num_lost = sum((lost or {}).values())
        counts = np.bincount(cause, minlength=_MAX_CAUSES + 1)
        counts[0] = 0
        counts[_MAX_CAUSES] = 0  # left out
        num_wrong = int(counts.sum()) + num_lost
        num_rows = len(rows) + num_lost
        if num_wrong <= MAX_UNUSABLE * num_rows:
            return ""
        worst = int(counts.argmax())
        if lost and num_lost > counts[worst]:
            message = max(lost, key=lost.__getitem__)
        else:
            first = int(rows[cause == worst][0])
            message = self._problems[worst](first)
        if num_wrong > 1:
            message += f" ({num_wrong} of {num_rows} rows cannot be used)"
        return message

    def _report(self) -> None:
        counts = np.bincount(self._cause, minlength=len(self._causes))
        causes = Counter[str]()
        for number, cause in enumerate(self._causes[1:], 1):
            causes[f"row: {cause}"] += int(counts[number])
        for cause, count in (self._lost + self._left_out).items():
            causes[f"row: {cause}"] += count
        report_dropped(self.path, causes)

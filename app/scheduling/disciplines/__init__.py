"""The table of disciplines."""

from collections.abc import Mapping
from types import MappingProxyType

from app.scheduling.disciplines.base import Candidate, Discipline, Select
from app.scheduling.disciplines.edf import EDF
from app.scheduling.disciplines.fair import FAIR
from app.scheduling.disciplines.fifo import FIFO

#: The disciplines by name.
DISCIPLINES: Mapping[str, Discipline] = MappingProxyType({each.name: each for each in (FAIR, FIFO, EDF)})

__all__ = ["DISCIPLINES", "Candidate", "Discipline", "Select"]

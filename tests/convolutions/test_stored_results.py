"""The page on convolutions shows what is stored."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

import convolution_speed
import convolution_study
import convolution_twins

PAGE = Path(__file__).parents[2] / "docs" / "convolutions.md"


@pytest.mark.parametrize("study", [convolution_speed, convolution_study, convolution_twins])
def test_tables_are_those_of_the_stored_runs(study: ModuleType) -> None:
    rows = json.loads(study.PLACE.read_text())["rows"]
    assert study.table(rows) in PAGE.read_text(), f"put {study.__name__} --table into {PAGE.name}"

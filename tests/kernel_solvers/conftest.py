"""Lets the tests here import their shared problems."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

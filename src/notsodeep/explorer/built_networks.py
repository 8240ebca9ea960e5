"""The finite networks of a view: trained, timed and ready to be taken away.

PyTorch is imported here, and nothing imports this module before someone asks for a network.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from notsodeep.compilation.finite_networks import train_network
from notsodeep.compilation.settings import CompileSettings
from notsodeep.data import Dataset, draw_rows
from notsodeep.errors import MissingPackage, NoOnnxForm, NotConverged
from notsodeep.explorer.cost import TOLERANCE
from notsodeep.explorer.state import ExplorerState
from notsodeep.matching import Match
from notsodeep.networks.build import build
from notsodeep.networks.modules import EquilibriumNetwork, ExplicitModule
from notsodeep.networks.onnx_export import export_onnx
from notsodeep.networks.persistence import save
from notsodeep.networks.timing import TimingTable, time_against

_BATCH = 256
_REPEATS = 5


@dataclass(frozen=True, eq=False)
class BuiltNetworks:
    """The matched network in files, and what was measured.

    Attributes
    ----------
    safetensors : bytes
    onnx : bytes or None
    onnx_note : str
        Why there is no ONNX file.
    accuracy : float or None
        Of the network on held-out rows, its read-out fitted by ridge regression; None if there
        is one class only, and the read-out is random.
    timing : TimingTable or None
        Against the DEQ of the same width, read-out trained.
    timing_note : str
        Why there is none.
    """

    safetensors: bytes
    onnx: bytes | None
    onnx_note: str
    accuracy: float | None
    timing: TimingTable | None
    timing_note: str


def built_networks(state: ExplorerState, found: Match, data: Dataset) -> BuiltNetworks:
    """Draw the matched network at the state's width, fit its read-out, and time it.

    Raises
    ------
    NotSoDeepError
        It cannot be built; the message says why.
    """
    sizes = (data.X.shape[1], state.width, len(data.classes), state.seed)
    deq = build(found.deq, *sizes, trainable="readout")
    with tempfile.TemporaryDirectory(prefix="notsodeep-") as directory:
        place = Path(directory)
        module = build(found.network, *sizes, trainable="readout")
        accuracy = None
        if len(data.classes) > 1:
            settings = CompileSettings(found.deq, width=state.width, seed=state.seed)
            module, record = train_network(found.network, data, settings, 0, place)
            accuracy = float(record["accuracy"])
        assert isinstance(deq, EquilibriumNetwork)
        assert isinstance(module, ExplicitModule)
        target, onnx = place / "network.safetensors", place / "network.onnx"
        options = {"preprocessing": data.preprocessing, "classes": data.classes}
        save(module, target, **options)  # type: ignore[arg-type]
        note = ""
        try:
            export_onnx(module, onnx, **options)  # type: ignore[arg-type]
        except (MissingPackage, NoOnnxForm) as error:
            note = str(error)
        timing, timing_note = _timed(deq, module, data, state.seed)
        return BuiltNetworks(
            target.read_bytes(),
            None if note else onnx.read_bytes(),
            note,
            accuracy,
            timing,
            timing_note,
        )


def _timed(
    deq: EquilibriumNetwork, module: ExplicitModule, data: Dataset, seed: int
) -> tuple[TimingTable | None, str]:
    try:
        rows = data.X[draw_rows(data.X, _BATCH, seed)]
        return time_against(deq, module, rows, tolerance=TOLERANCE, repeats=_REPEATS), ""
    except NotConverged as error:
        return None, str(error)

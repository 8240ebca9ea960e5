"""Text of strangers that ends up in a page, and configuration files of theirs."""

from __future__ import annotations

import html.parser
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli.main import app, main
from printed import complaints

CLASSES = ["<script>alert(1)</script>", "$\\frac{ é", "\"';--"]


class Tags(html.parser.HTMLParser):
    """The tags of a page, and those of their attributes that run something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@pytest.mark.slow
def test_hostile_names_reach_the_report_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class names and the name of the file; `$` would be mathematics in a figure, too."""
    monkeypatch.chdir(tmp_path)
    label = np.arange(60) % 3
    X = np.random.default_rng(0).normal(size=(60, 6)) + 2.0 * np.eye(6)[label]
    file = "<img src=x onerror=alert(1)> $a_{ ü.npz"
    np.savez(file, X=X, y=np.array(CLASSES)[label])
    arguments = ["--data", file, "--test-samples", "20", "--width", "8", "--seeds", "2"]
    result = CliRunner().invoke(
        app, ["compile", *arguments, "--family", "leaky_relu", "--no-refine", "--out", "o ü"]
    )
    assert result.exit_code == 0, result.exception
    page = (tmp_path / "o ü" / "report.html").read_text(encoding="utf-8")
    tags = Tags(page)
    assert "script" not in tags.names
    assert "img" not in tags.names
    assert tags.handlers == []
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    net = nsd.load(tmp_path / "o ü" / "network.safetensors")
    assert sorted(net.classes) == sorted(CLASSES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sigma-a2 = nan\n", "sigma_a2"),
        (b"sigma-a2 = inf\n", "sigma_a2"),
        (b"sigma-a2 = 0.1\nsigma-a2 = 0.2\n", "config must be a TOML file"),
        (b"sigma-a2 = 0.1\nsigma_a2 = 0.2\n", "each option once"),
        (b"sigma-a2 = [0.1, 0.2]\n", "sigma"),
        (b"sigma-a2 = {x = 1}\n", "sigma"),
        (b"sigma-a2 = 1979-05-27\n", "sigma"),
        (b"dtype = true\n", "dtype"),
        (b"[table]\nsigma-a2 = 0.1\n", "table"),
        (b"x = " + b"[" * 20_000, "config must be a TOML file"),
        (b"\xff\xfe", "config must be a TOML file"),
        (b"config = 'other.toml'\n", "config"),
        (b"__class__ = 1\n", "class"),
    ],
)
def test_configurations_are_refused_in_one_line(
    content: bytes,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["notsodeep", "kernel", "--config", str(path)])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert printed.out == ""
    assert complaints(printed.err).startswith("error: ")
    assert complaints(printed.err).count("\n") == 1
    assert message in printed.err

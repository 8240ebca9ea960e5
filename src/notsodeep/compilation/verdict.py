"""May the shallow network replace the DEQ?  The rule, the answer, and the evidence in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from notsodeep.models import Conditions

_SCATTER = 2.0  # quartiles of time ratios further apart than this: the machine had other work

Word = Literal["replaceable", "not shown", "not replaceable"]


@dataclass(frozen=True, eq=False)
class ReplacementVerdict:
    """Whether a network may replace a DEQ, by a rule that comes with the answer.

    Attributes
    ----------
    word : {"replaceable", "not shown", "not replaceable"}
        "not shown": the kernels agree, and the accuracies may; there are too few draws, or test
        rows, to tell.
    headline : str
        The answer as a sentence.
    rule : str
        What it was judged by, with the limits.
    reasons : tuple of str
        The evidence, with its numbers.
    conditions : Conditions
        The theory's assumptions on the model and the training data.  They are sufficient, not
        necessary, and no part of the rule.
    """

    word: Word
    headline: str
    rule: str
    reasons: tuple[str, ...]
    conditions: Conditions

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {
            "word": self.word,
            "headline": self.headline,
            "rule": self.rule,
            "reasons": list(self.reasons),
            "conditions": self.conditions.to_dict(),
        }

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {text}" for text in (*self.reasons, self.rule))])


def verdict_word(summary: Mapping[str, Any]) -> Word:
    """Judge the numbers of a summary."""
    if summary["replaceable"]:
        return "replaceable"
    low, high = summary["accuracy_difference"]
    limit = summary["accuracy_limit"]
    # Evidence against is a kernel that differs, or an interval all of which is beyond a limit; one
    # that overlaps a limit shows neither.
    overlaps = low <= limit and high >= -limit
    return "not shown" if summary["kernel_close"] and overlaps else "not replaceable"


def headline(summary: Mapping[str, Any]) -> str:
    """Say in one sentence whether the DEQ can be replaced."""
    depth = {1: "one-hidden-layer", 2: "two-hidden-layer"}.get(summary["layers"], "shallow")
    family = str(summary["family"]).replace("_", " ")
    kind = "convolutional " if str(summary["network"]).startswith("convolutional") else ""
    network = f"a {depth} {kind}{family} network"
    model = "This DEQ"
    word = verdict_word(summary)
    if word == "replaceable":
        return f"{model} can be replaced by {network}."
    if not summary["kernel_close"]:
        return f"{model} should not be replaced by {network}: their kernels differ too much."
    if word == "not shown":
        return (
            f"The kernels agree, but {network} is not shown to be as accurate: too few draws or "
            "test rows."
        )
    return f"{model} should not be replaced by {network}: their accuracies differ."


def reasons(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Give the evidence in words."""
    accuracy, deviation = summary["accuracy"], summary["accuracy_deviation"]
    low, high = summary["accuracy_difference"]
    about = [
        f"Without the constant part of both kernels the gap is {summary['gap_with_bias']:.2%}; "
        f"with the scale free too, as tuned read-outs with a bias see them, "
        f"{summary['readout_gap']:.2%} against {summary['unmatched_readout_gap']:.2%} of the "
        "unmatched network."
    ]
    if summary["plain_suffices"]:
        about.append("With scale and constant free a plain layer does as well.")
    speed = (
        f"Inference is {summary['inference_ratio']:.1f} times faster than the DEQ at tolerance "
        f"{summary['tolerance']:g} ({summary['steps']} steps), the cheapest that keeps its "
        f"accuracy, and {summary['strict_inference_ratio']:.1f} times at {settings['tolerance']:g}"
    )
    fast, slow = summary["inference_quartiles"]
    if slow > _SCATTER * fast:
        speed += f" (unreliable: half of the ratios lie between {fast:.1f} and {slow:.1f})"
    if summary.get("library") == "numpy":
        speed += ", both in NumPy"
    if summary["training_ratio"] is not None:
        speed += f"; a training step is {summary['training_ratio']:.1f} times faster"
    return [
        f"Kernel gap on {certified_rows(summary)} {summary['relative_gap']:.2%}; of an unmatched "
        f"network {summary['unmatched_scaled_gap']:.2%} at its best scale, "
        f"{summary['unmatched_relative_gap']:.2%} as it is.",
        *about,
        f"Test accuracy {100 * accuracy['matched']:.1f} % against {100 * accuracy['deq']:.1f} "
        f"± {100 * deviation['deq']:.1f} % of the DEQ over {settings['seeds']} draws; the "
        f"difference lies between {low:+.2f} and {high:+.2f} points (95 % interval, for other "
        "draws and other test rows).",
        f"{speed}.",
    ]


def certified_rows(summary: Mapping[str, Any]) -> str:
    """Say which rows the kernels were compared on."""
    number = summary.get("certified_rows")  # not in runs of earlier versions
    return "held-out rows" if number is None else f"{number} held-out rows"


def rule(settings: Mapping[str, Any]) -> str:
    """State the rule behind the verdict."""
    return (
        f"Rule: replaceable if the relative kernel gap on held-out rows, with and without the "
        f"constant part of the kernels, is at most {settings['gap_limit']:.1%} and the 95 % "
        f"interval of the accuracy difference lies within ± {settings['accuracy_limit']:g} points; "
        "not shown if that interval overlaps the limits."
    )

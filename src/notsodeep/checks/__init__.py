"""Checks of user input that several modules share; what one module alone checks stands there.

A message names the parameter, its owner, the requirement and the value got, and ends with a
remedy where one is known.  Checks return the value in the form the caller wants it in.
"""

from notsodeep.checks.arrays import (
    FloatArray,
    IntArray,
    covariances,
    increasing_points,
    kernel_dtype,
    kernel_resolved,
    matrix_of_shape,
    plain_array,
    powers_finite,
    powers_nonzero,
    real_array,
    samples,
    scales,
    unit_rows,
    unmasked,
)
from notsodeep.checks.classes import (
    class_labels,
    class_sizes,
    nonzero_scale,
)
from notsodeep.checks.json_text import DEEPEST, shallow, strict_json
from notsodeep.checks.memory import (
    available_memory,
    enough_memory,
    symmetric_operator,
    unpacked_fits,
)
from notsodeep.checks.scalars import (
    data_scale,
    finite_number,
    integer_at_least,
    positive_integer,
    positive_number,
    random_generator,
    stored_form,
)
from notsodeep.checks.wording import known_name, refusal

__all__ = [
    "DEEPEST",
    "FloatArray",
    "IntArray",
    "available_memory",
    "class_labels",
    "class_sizes",
    "covariances",
    "data_scale",
    "enough_memory",
    "finite_number",
    "increasing_points",
    "integer_at_least",
    "kernel_dtype",
    "kernel_resolved",
    "known_name",
    "matrix_of_shape",
    "nonzero_scale",
    "plain_array",
    "positive_integer",
    "positive_number",
    "powers_finite",
    "powers_nonzero",
    "random_generator",
    "real_array",
    "refusal",
    "samples",
    "scales",
    "shallow",
    "stored_form",
    "strict_json",
    "symmetric_operator",
    "unit_rows",
    "unmasked",
    "unpacked_fits",
]

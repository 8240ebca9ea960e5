"""Checks of user input: one function per condition, and the only place where messages are worded.

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
    output_array,
    plain_array,
    powers_finite,
    powers_nonzero,
    real_array,
    samples,
    scales,
    unit_rows,
    unmasked,
    variances,
)
from notsodeep.checks.classes import (
    class_labels,
    class_proportions,
    class_sizes,
    covariance_stack,
    nonzero_scale,
    positive_semidefinite,
)
from notsodeep.checks.functions import elementwise
from notsodeep.checks.json_text import DEEPEST, shallow, strict_json
from notsodeep.checks.memory import (
    available_memory,
    cache_fits,
    enough_memory,
    memory_budget,
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
    recurrent_variance,
    stored_form,
)
from notsodeep.checks.wording import known_name, refusal

__all__ = [
    "DEEPEST",
    "FloatArray",
    "IntArray",
    "available_memory",
    "cache_fits",
    "class_labels",
    "class_proportions",
    "class_sizes",
    "covariance_stack",
    "covariances",
    "data_scale",
    "elementwise",
    "enough_memory",
    "finite_number",
    "increasing_points",
    "integer_at_least",
    "kernel_dtype",
    "kernel_resolved",
    "known_name",
    "matrix_of_shape",
    "memory_budget",
    "nonzero_scale",
    "output_array",
    "plain_array",
    "positive_integer",
    "positive_number",
    "positive_semidefinite",
    "powers_finite",
    "powers_nonzero",
    "random_generator",
    "real_array",
    "recurrent_variance",
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
    "variances",
]

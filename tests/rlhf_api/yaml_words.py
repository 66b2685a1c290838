"""Unquoted words of YAML, and the values that kubectl gives to those that YAML 1.2 reads otherwise.

A test with a real kubectl confirms them.
"""

from __future__ import annotations

from rlhf_api.reading.yaml_scalars import Scalar

DIFFERENT: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
    **{"010": 8, "0777": 511, "-010": -8, "+017": 15},
    **{"1_000": 1000, "1_000.5": 1000.5, "1__0": 10, "0_8": 8, "1_0e-5": 1e-4},
    **{"0b11": 3, "0B11": 3, "0O17": 15, "0X1F": 31, "0x_1F": 31, "-0x10": -16},
}
ALIKE = (
    *("0o17", "0x1F", "0o18", "08", "0", "00", "-0", "1e5", "1E3", "1e-5", "1.5e+3", "1.", ".5"),
    *("+5", "12e03", "1:30", "2001-01-01", "_1", "yEs", "oN", "nO", "~", "null", "Null", "True"),
    *("=", "x_1", "1_a", "a-b", "4Gi", "500m"),
)

# SPDX-License-Identifier: Apache-2.0
"""Names and machine constants that several stages share."""

DEVICE_NAME = "spyre"

CORES = 32
STICK_BYTES = 128
LX_BYTES = 2 << 20
SEGMENT_BYTES = 16 << 30
DATA_SEGMENTS = 7
MAX_SPAN_BYTES = 256 << 20  # device memory one core may address per tensor
FLOAT16_TOP = 65472.0  # the largest number of SEN169_FP16 that float16 has too; the next, 65536, it reads as infinity

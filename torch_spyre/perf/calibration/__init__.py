# SPDX-License-Identifier: Apache-2.0
"""The clock against measurements: kernels as they were measured, the error of the model, the fit of its constants."""

# SPDX-License-Identifier: Apache-2.0
"""A step of the model: the sizes it is made for, its compiled blocks, its recorded launches."""

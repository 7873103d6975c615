# SPDX-License-Identifier: Apache-2.0
"""A file that needs a module which is not there."""

import a_module_that_does_not_exist  # noqa: F401

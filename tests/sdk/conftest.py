# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import sdk_client


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> sdk_client.Sdk:
    return sdk_client.build(tmp_path_factory.mktemp("sdk"))

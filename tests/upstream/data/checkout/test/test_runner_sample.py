# SPDX-License-Identifier: Apache-2.0
# Owner(s): one test for each thing that may become of a test, in the style of PyTorch's device-generic files.
import os
import time
import unittest

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests, onlyCPU
from torch.testing._internal.common_utils import TestCase, run_tests


class TestSample(TestCase):
    def test_a_abort(self, device):
        torch.ones(3, device=device)
        os.abort()

    @dtypes(torch.float32, torch.float64)
    def test_dtypes(self, device, dtype):
        x = torch.ones(3, device=device, dtype=dtype)
        self.assertEqual((x + x).cpu(), torch.full((3,), 2, dtype=dtype))

    def test_fail(self, device):
        self.assertEqual(torch.ones(3, device=device), torch.zeros(3, device=device))

    def test_gap(self, device):
        raise RuntimeError("this is not there yet")

    def test_gap_closed(self, device):
        torch.ones(3, device=device)

    @unittest.expectedFailure
    def test_expected_failure(self, device):
        self.fail("as expected")

    @onlyCPU
    def test_only_cpu(self, device):
        self.fail("is never reached on another device")

    def test_refused(self, device):
        torch.ones(3, device=device, dtype=torch.float64)

    def test_several_faults(self, device):
        for n in range(3):
            with self.subTest(n=n):
                self.assertEqual(n, 0)

    def test_z_hang(self, device):
        time.sleep(3600)


class TestBrokenClass(TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError("cannot be set up")

    def test_never_starts(self, device):
        pass


class TestHost(TestCase):
    """Not instantiated for the device: it runs once, as it is."""

    def test_pass(self):
        self.assertEqual(torch.ones(3).sum(), 3)


instantiate_device_type_tests(TestSample, globals())
instantiate_device_type_tests(TestBrokenClass, globals())

if __name__ == "__main__":
    run_tests()

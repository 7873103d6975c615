# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own test files, unmodified, for a device that lives outside PyTorch's tree.

config.py      the TOML file: how a file is run, what each test is
supervise.py   one process for each file; a test that kills or hangs it is recorded and the next one runs
worker.py      that process: imports the file for the device, runs the tests it is told
results.py     what has been run, kept so that a stopped run goes on
report.py      tables, and the difference to another run

Nothing here imports the device: its name is data.
"""

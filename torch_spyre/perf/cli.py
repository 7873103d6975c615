# SPDX-License-Identifier: Apache-2.0
"""``spyre-perf``: check the clock against measurements, list device descriptions, refit the clock."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_spyre import command_line
from torch_spyre.perf import device as devices


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    return command_line.guarded("perf", lambda: args.run(args))


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.parser("perf", __doc__, "validate\ndevices spyre")
    commands = parser.add_subparsers(required=True, metavar="command")
    validate = commands.add_parser("validate", help="error of the clock against measurements, per class")
    validate.add_argument("csv", nargs="*", help="files with the columns of measured/*.csv (default: those)")
    validate.add_argument("--device", default="spyre", help="name or path of a description")
    validate.add_argument("--no-cross-validation", action="store_true", help="skip the refits without each shape")
    validate.add_argument("--rows", metavar="TEXT", help="also list the rows whose class or label contains TEXT")
    command_line.add_json(validate)
    validate.set_defaults(run=_validate)
    listing = commands.add_parser("devices", help="the device descriptions and all their constants")
    listing.add_argument("names", nargs="*", help="names or paths (default: all that come with the package)")
    command_line.add_json(listing)
    listing.set_defaults(run=_devices)
    calibrate = commands.add_parser("calibrate", help="refit the fitted constants and print the error table")
    calibrate.add_argument("--device", default="spyre", help="name of a description")
    calibrate.add_argument("--write", action="store_true", help="write the fitted values into the description")
    calibrate.set_defaults(run=_calibrate)
    return parser


def _validate(args: argparse.Namespace) -> int:
    from torch_spyre.perf.calibration import validate  # late: start-up
    from torch_spyre.perf.calibration.calibrate import leave_one_shape_out  # late: start-up

    device = devices.load(args.device)
    rows = validate.rows_of(args.csv)
    predictions = validate.predict(rows, device)
    if args.json:
        command_line.print_json(
            {
                "device": device.name,
                "classes": [
                    {"class": e.group, "rows": e.rows, "median_error": e.median, "mean_error": e.mean, "bias": e.bias}
                    for e in validate.by_class(predictions)
                ],
                "rows": [
                    {"label": p.row.label, "class": p.row.group, "measured_us": p.row.micros, "clock_us": p.micros}
                    for p in predictions
                ],
            }
        )
        return 0
    # Files of others are checked with the constants as they are: they took no part in the fit.
    held_out = () if args.no_cross_validation or args.csv else leave_one_shape_out(rows, device)
    print(validate.report(rows, predictions, held_out))
    if args.rows:
        chosen = [p for p in predictions if args.rows in p.row.group or args.rows in p.row.label]
        for p in sorted(chosen, key=lambda p: p.row.label):
            print(
                f"{100 * p.error:+7.1f} %  measured {p.row.micros:10.1f} us  clock {p.micros:10.1f} us  {p.row.label}"
            )
    return 0


def _devices(args: argparse.Namespace) -> int:
    found = [devices.load(name) for name in args.names or devices.described()]
    if args.json:
        command_line.print_json(
            {
                d.name: {"description": d.description, "constants": {k: vars(c) for k, c in d.constants.items()}}
                for d in found
            }
        )
        return 0
    for device in found:
        print(f"{device.name}: {device.description}")
        for key, c in device.constants.items():
            print(f"  {key:26} {c.value:>12g} {c.unit:26} {c.confidence}  {c.source}")
        print()
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    from torch_spyre.perf.calibration import calibrate, validate  # late: start-up

    device = devices.load(args.device)
    rows = validate.rows_of()
    fit = calibrate.Fit(rows, device)
    fitted = fit.run()
    for name in fit.names:
        print(f"{name:28} {device[name]:12.5g} -> {fitted[name]:12.5g} {device.constants[name].unit}")
    print()
    print(validate.report(rows, validate.predict(rows, fitted)))
    if args.write:
        calibrate.write_values(devices.described()[args.device], fitted, fit.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
